// Rows: backward in slices of rows (tokens), so that only one slice of a block's inside is ever
// there.
//
//   retape::CheckpointOptions options;
//   options.rows = retape::Rows(8);   // eight slices
//   auto y = retape::checkpoint(options, [&](at::Tensor x) { return w2(silu(w1(x)) * w3(x)); }, x);
//
// NOT BIT FOR BIT. Everything else in Retape gives the bits of plain autograd; this does not. A sum
// over rows (the gradient of a weight) is added up slice by slice, in float32 (float64 for
// float64), and a matrix product of fewer rows may round otherwise. Gradients are equal to
// rounding: verify needs a tolerance. Off unless asked for.
//
// The function runs once. Of its call nothing is held but what it was given: arguments, and tensors
// that it captured. Backward takes the rows of the arguments slice by slice, replays the recorded
// ops on them, and adds the gradients of weights straight into one buffer each.
//
// Rows are the leading dimensions, all but the last, of the first floating-point argument. The ops
// must treat rows apart: products with weights, elementwise ops, norms, softmax and reductions over
// trailing dimensions, views that keep rows whole. If one does not (attention, batch norm,
// dropout), the call is replayed whole, as without Rows, bit for bit; stats() tells how often and
// why, and a warning says so once. `strict`: a UsageError in its place.
//
// There is no graph of such a backward: create_graph raises.
// Copies share their counts. Threads: any.
#pragma once

#include <retape/api.h>
#include <retape/policy.h>

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace retape {

struct RowsStats {
  uint64_t sliced = 0;        // calls whose backward goes slice by slice
  uint64_t whole = 0;         // calls that are replayed whole
  uint64_t ops_replayed = 0;  // of sliced calls, each op once a slice
  std::string reason;         // why the last call that is replayed whole is not sliced
};

namespace detail {
struct RowsCounts;
class RowsCall;
using Tensors = std::vector<at::Tensor>;
}  // namespace detail

class RETAPE_API Rows {
 public:
  // `slices`: at least 1. There are fewer if there are fewer rows, and more where a captured tensor
  // is the same for some rows only (a scale for each sequence): then no slice goes beyond those.
  explicit Rows(int64_t slices, bool strict = false);

  int64_t slices() const { return slices_; }
  bool strict() const { return strict_; }
  RowsStats stats() const;

 private:
  friend class detail::RowsCall;
  int64_t slices_;
  bool strict_;
  std::shared_ptr<detail::RowsCounts> counts_;
};

namespace detail {

// One call. Open while the function runs; `policy` and `name` are those of its region.
class RETAPE_API RowsScope {
 public:
  RowsScope(const Rows& rows, Policy policy, std::string name, const Tensors& inputs);
  ~RowsScope();
  RowsScope(const RowsScope&) = delete;
  RowsScope& operator=(const RowsScope&) = delete;

  // Ends it. What the function has returned, with one node behind it, or as it was.
  Tensors finish(const Tensors& outputs);
  void close();  // ends it without: the function has thrown

  // What to tell the user, after the first call of its Rows that is replayed whole; else empty.
  const std::string& warning() const { return warning_; }

 private:
  std::unique_ptr<RowsCall> call_;
  std::string warning_;
};

}  // namespace detail

}  // namespace retape
