// Plan: a program as backward runs it. Steps that see no rows run once, before all slices; the
// others once for each slice.
#pragma once

#include "backward/rows/program.h"
#include "backward/rows/rules.h"

#include <optional>

namespace retape::detail {

struct RowStep {
  Step step;
  c10::SmallVector<int, 2> cuts;  // of its reads: which of the plan's; -1: the tensor itself
  int lead;                       // of its results
  int sizes_arg = -1;
  c10::SmallVector<int64_t, 5> sizes;  // of its first result, for sizes_arg
  c10::SmallVector<uint32_t, 2> last;  // tensors with rows that no later step reads
  bool idle = false;                   // no backward looks at the values that it makes
};

struct Carrier {  // a tensor that carries rows
  uint32_t tensor;
  int lead;
};

struct CutTensor {
  uint32_t tensor;
  Cut cut;
  bool complete;  // it has a part of its own for every row
};

struct Plan {
  int64_t rows = 0;
  size_t tensors = 0;  // numbers go up to here
  std::vector<Flags> flags;
  std::vector<Step> whole_steps;
  std::vector<RowStep> row_steps;
  std::vector<uint32_t> given;     // what backward needs of it
  std::vector<Carrier> sources;    // those of it that carry rows
  std::vector<uint32_t> operands;  // whole tensors that row steps read, as they are or cut
  std::vector<CutTensor> cuts;
  std::vector<Carrier> outputs;
  std::vector<int64_t> ends;  // no slice goes beyond a multiple of any of these
};

// `carriers`: numbers of the given tensors that carry rows, all of the same leading sizes.
// `outputs`: numbers. Nothing, and why, if there is an op that does not treat rows apart.
std::optional<Plan> make_plan(
    const Program& program,
    const std::vector<uint32_t>& carriers,
    int64_t rows,
    const std::vector<uint32_t>& outputs,
    std::string& why);

}  // namespace retape::detail
