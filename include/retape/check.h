// check: is what replay makes what forward made?
//
//   retape::check_every(100);   // or RETAPE_CHECK=100 in the environment
//
// On every n-th step a digest is taken of every value that forward records, and whatever replay
// makes of it is compared. A difference raises ReplayMismatch in backward, before a gradient is
// made from it: the op, both values, the region. A step is what runs up to a backward; one that
// runs inside another (use_reentrant=True) is a step of its own. Cost: nothing when off; on a
// checked step, one more read of every recorded and replayed byte.
//
// An Observer looks closer and collects what it finds instead of raising: for verify.h.
#pragma once

#include <retape/api.h>
#include <retape/stats.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace retape {

RETAPE_API void check_every(uint64_t n);  // 0: never
RETAPE_API uint64_t check_every();

struct CheckStats {
  uint64_t steps = 0;           // backwards that asked a region for a tensor, checked or not
  uint64_t values_checked = 0;  // replayed values that were compared
};
RETAPE_API CheckStats check_stats();

// Something that replay did not do as forward did.
struct Finding {
  std::string kind;  // one of a few words, listed in docs/proofs.md: "values", "generator state"...
  std::string op;    // "aten::mul.Tensor"; empty: not in an op
  std::string region;  // name of its scope
  std::string source;  // "model.py:31 in forward", where the language can tell
  std::string what;    // expected ... got ...
};

// A scope or a checkpointed call that an observer saw.
struct SeenRegion {
  std::string name;
  uint64_t ops_recorded = 0;
  uint64_t ops_replayed = 0;     // by replay
  uint64_t reruns = 0;           // times the function was called again
  std::vector<KeptOp> kept_ops;  // that it would drop if they were replayable
};

namespace detail {
class ReplayChecker;
}

// While it lives, scopes that open, on any thread, are watched. One at a time.
class RETAPE_API Observer {
 public:
  struct Options {
    bool copies = false;  // hold forward's bytes too, so that a difference can be counted in ulps
  };

  Observer() : Observer(Options()) {}
  explicit Observer(Options options);
  ~Observer();
  Observer(const Observer&) = delete;
  Observer& operator=(const Observer&) = delete;

  // In the order they were found; the first is where it came from.
  std::vector<Finding> findings() const;
  std::vector<SeenRegion> regions() const;
  uint64_t values_checked() const;

  // After the graphs are gone: bytes that are still held for a backward that cannot come.
  uint64_t bytes_held() const;

 private:
  std::shared_ptr<detail::ReplayChecker> checker_;
};

namespace detail {

// For language bindings: says where in the user's code the op that runs now was called.
RETAPE_API void set_source_finder(std::function<std::string()> finder);

// Faults that can be switched on, to show that they are noticed. None in a build without
// RETAPE_FAULTS.
struct FaultInfo {
  std::string id;      // "one-ulp"
  std::string breaks;  // what goes wrong
  std::string kind;    // of the finding that names it
};
RETAPE_API const std::vector<FaultInfo>& faults();
RETAPE_API void inject(const std::string& id);  // "": none. UsageError: no such fault
RETAPE_API bool is_injected(const std::string& id);
RETAPE_API void fault_hit();       // for language bindings, whose own code has some
RETAPE_API uint64_t fault_hits();  // times it did something since inject()

}  // namespace detail

}  // namespace retape
