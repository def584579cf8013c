// What stands behind checkpoint's method Rerun. Not called directly: see checkpoint.h.
#pragma once

#include <retape/api.h>

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace retape::detail {

using Tensors = std::vector<at::Tensor>;

struct RerunOptions {
  std::string name;  // of the region
  bool preserve_rng_state =
      true;  // the second run draws what the first drew; else it is compared all the same
  bool early_stop = true;         // the second run ends when everything has been saved again
  bool check_determinism = true;  // what it saves is compared, bit for bit, with what forward saved
  bool debug = false;             // errors list the ops of both runs
  // Ends the second run early, from inside an op. A language binding throws what its functions
  // let pass; null: a C++ exception that is not a std::exception.
  void (*stop)() = nullptr;
};

struct StopRerun {
};  // thrown by the default `stop`, and by a binding's `again` when it was stopped

class FirstRun;

// While it lives, what autograd saves on this thread is forgotten; backward calls `again` with what
// `inputs` were and takes the tensors that are then saved.
class RETAPE_API RerunScope {
 public:
  using Again = std::function<void(const Tensors& inputs)>;

  RerunScope(RerunOptions options, const Tensors& inputs, Again again);
  ~RerunScope();
  RerunScope(const RerunScope&) = delete;
  RerunScope& operator=(const RerunScope&) = delete;

 private:
  std::unique_ptr<FirstRun> run_;
};

// Calls `body`, forgets its graph and makes its results one node; in backward calls it again and
// runs a backward through the graph of that.
RETAPE_API Tensors reentrant(
    RerunOptions options,
    const Tensors& inputs,
    std::function<Tensors(const Tensors& inputs)> body);

}  // namespace retape::detail
