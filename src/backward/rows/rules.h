// Which ops treat rows apart, and how. A tensor carries rows if its first `lead` dimensions run
// over all of them, in order: [2, 2048 | 512] and [4096 | 512] carry the same 4096. Within a slice
// of n rows it is [1, n | 512] or [n | 512], so that dimensions keep their numbers.
#pragma once

#include "backward/rows/program.h"

#include <string>

namespace retape::detail {

constexpr int kWhole = -1;  // lead of a tensor that is the same for all rows

// How a step takes a whole tensor that varies along rows: its first dimensions are the innermost of
// the row dimensions `rows`, each whole or of size 1.
struct Cut {
  int lead = kWhole;  // kWhole: not cut
  c10::SmallVector<int64_t, 3> rows;
  bool operator==(const Cut& other) const { return lead == other.lead && rows == other.rows; }
};

struct Operand {
  c10::IntArrayRef sizes;
  int lead;
};

// What comes of it.
struct Carried {
  std::string refused;            // empty: it treats rows apart
  int lead = kWhole;              // of its results
  c10::SmallVector<Cut, 2> cuts;  // of its reads
  int sizes_arg = -1;             // argument that is its result's sizes, and so those of a slice
};

// `reads`: at least one carries rows. `made`: sizes of the results.
Carried carry(
    const Step& step,
    c10::ArrayRef<Operand> reads,
    c10::ArrayRef<c10::IntArrayRef> made,
    int64_t rows);

// Its backward looks at no values, neither of its arguments nor of its results.
bool is_blind(const OpInfo& op);

// The least number of dimensions that run over `rows` rows; kWhole if none does.
int leading(c10::IntArrayRef sizes, int64_t rows);

}  // namespace retape::detail
