// Contributions: the places where a rank's number enters what all ranks compute together. GradCheck
// lists them while a step runs, and then breaks one at a time, to show that it would notice.
//
// Every function of retape::dist that adds ranks up calls `detail::pass` with the name that it was
// given. With no Watch in the process that is one relaxed load.
#pragma once

#include <retape/api.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace retape::dist {

enum class Place : uint8_t {
  Sum,       // a tensor of a SumReducer, of sum or sum_async
  Once,      // contribute_once, contribute_from
  Count,     // count_global
  Residual,  // global_residual
  Gradient,  // of an Edge, at its receiver's
  Norm,      // clip_grad_norm
};

enum class Mutation : uint8_t {
  None,
  Drop,    // nothing is contributed; Count: the first rank is not counted; Residual: no gradient
  Double,  // everything twice; Residual: the gradient
  OnAllRanks,    // contribute_once: by every rank
  Average,       // the sum, divided by the number of ranks
  TimesGroup,    // multiplied by the number of ranks
  LocalCount,    // this rank's count in place of everybody's
  OtherCount,    // this rank's count times `factor`: the size of another group
  LocalValue,    // global_residual: this rank's sum in place of everybody's
  EveryReplica,  // clip_grad_norm: every replica counts
  Weighted,      // a sum: this rank's part times `factor`, which may be another on each
};

struct Contribution {
  Place place;
  std::string name;
  std::string group;
  int size = 1;  // of the group
  int64_t count =
      0;  // Count: of this rank. Norm: replicas that another counts, the most of all ranks
  bool even = true;  // Count: the same on all ranks, each time
  // Sum of several tensors under one name, as of a bucket: their names, with ", " between. Empty:
  // `name` is the tensor's.
  std::string contents = {};
  bool operator==(const Contribution& other) const {
    return place == other.place && name == other.name && group == other.group;
  }
};

RETAPE_API const char* text(Place place);
RETAPE_API const char* text(Mutation mutation);

// What can be broken at such a place. OtherCount and Weighted are not among them: they need a
// factor.
RETAPE_API std::vector<Mutation> mutations_of(Place place);

// By what a gradient that consists of nothing but this contribution is multiplied; none where that
// is not one number, as of a local count where ranks do not count the same.
RETAPE_API std::optional<double> predicted_ratio(
    Mutation mutation, const Contribution& at, double factor = 1);

// What to break. A name "*" is every contribution to that place and group.
struct Break {
  Contribution at;
  Mutation mutation = Mutation::None;
  double factor = 1;
};

// Of this process, one at a time (UsageError). Every rank makes the same.
class RETAPE_API Watch {
 public:
  Watch();
  Watch(Contribution at, Mutation mutation, double factor = 1);
  explicit Watch(std::vector<Break> breaks);
  ~Watch();
  Watch(const Watch&) = delete;
  Watch& operator=(const Watch&) = delete;

  std::vector<Contribution> seen() const;  // each once, in order
  bool hit() const;                        // something was broken
};

namespace detail {

// The same one, seen again or on another rank.
RETAPE_API void merge(Contribution& known, const Contribution& other);

struct Change {
  Mutation mutation = Mutation::None;
  double factor = 1;
};

// Notes the contribution; what is to be done to it. `count`, `contents`: see Contribution.
RETAPE_API Change pass(
    Place place,
    const std::string& name,
    const std::string& group,
    int size,
    int64_t count = 0,
    const std::string& contents = {});

}  // namespace detail

}  // namespace retape::dist
