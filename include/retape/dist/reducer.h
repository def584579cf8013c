// SumReducer: gradients of many parameters, summed over a group in few calls.
//
//   SumReducer reducer(group);
//   for (auto& p : model->named_parameters()) {
//     reducer.add(p.key(), Partial(p.value().grad()));
//   }
//   reducer.reduce();     // each tensor is the sum, the same bits on every rank
//
// There is no average: whoever computed a Partial has divided it by a GlobalCount. Tensors go in
// buckets of one dtype and device, in the order in which they were added. They are written when all
// buckets have arrived: after a CollectiveError none of them has been.
#pragma once

#include <retape/dist/group.h>
#include <retape/dist/summand.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace retape::dist {

struct ReducerOptions {
  int64_t bucket_bytes = 25 << 20;
  // dtype in which tensors of floating point travel and are added; none: their own. Others
  // (integers, complex numbers) travel as they are.
  std::optional<at::ScalarType> wire;
  // Looks at every partial first, as it will travel; one that is not finite raises on every rank,
  // with rank and name.
  bool check_finite = false;
  Order order = Order::Any;
};

class RETAPE_API SumReducer {
 public:
  explicit SumReducer(Group group, ReducerOptions options = {});
  ~SumReducer();
  SumReducer(SumReducer&&) noexcept;
  SumReducer& operator=(SumReducer&&) noexcept;

  // The tensor is written by reduce. UsageError: undefined, sparse, or a name or memory that was
  // added already (tied weights): it would count twice.
  void add(const std::string& name, const Partial<at::Tensor>& partial);

  template <typename T>
  void add(const std::string&, const Replicated<T>&) {
    static_assert(
        detail::kNever<T>,
        "A Replicated value in a sum would be counted once per rank. "
        "Fix: reducer.add(name, retape::dist::contribute_once(name, replicated, group)).");
  }

  // The gradient of each parameter. Where it is undefined on this rank and not on another (an
  // expert without tokens), it counts as zeros, and is the sum afterwards; where on all, it stays
  // undefined.
  void add_gradients(const std::vector<std::pair<std::string, at::Tensor>>& parameters);

  // All that was added since the last time.
  void reduce();
  void reduce_async();  // starts; tensors must not be touched
  void wait();          // ends what reduce_async has started

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// One tensor alone, as a SumReducer would sum it: written when it is waited for. `name` is what
// GradCheck calls this contribution; `contents`, by default the name, is what ranks agree on.
RETAPE_API Pending sum_async(
    const std::string& name,
    const Partial<at::Tensor>& partial,
    const Group& group,
    const std::string& contents = "");

}  // namespace retape::dist
