#include "backward/rows/plan.h"

#include <algorithm>

namespace retape::detail {

namespace {

class Planner {
 public:
  Planner(const Program& program, int64_t rows) : program_(program) {
    plan_.rows = rows;
    plan_.tensors = program.tensors.size();
    plan_.flags = program.flags;
    lead_.assign(plan_.tensors, kWhole);
    last_.assign(plan_.tensors, -1);
  }

  bool run(const std::vector<uint32_t>& carriers, const std::vector<uint32_t>& outputs);

  Plan plan_;
  std::string why_;

 private:
  std::vector<bool> needed_steps(const std::vector<uint32_t>& outputs) const;
  bool add(const Step& step);
  bool add_whole(const Step& step);
  bool add_row(const Step& step);
  int number_of_cut(uint32_t tensor, const Cut& cut);
  void note_last_uses(const std::vector<uint32_t>& outputs);
  void note_idle_steps();
  bool refuse(const Step& step, const std::string& why) {
    why_ = step.op->name.name + " " + why;
    return false;
  }

  const Program& program_;
  std::vector<int> lead_;
  std::vector<int> last_;
};

template <typename T>
void add_once(std::vector<T>& list, const T& item) {
  if (std::find(list.begin(), list.end(), item) == list.end()) {
    list.push_back(item);
  }
}

// What only looks at values, for a log or a branch, need not treat rows apart. What writes may
// write through a view to what is needed.
std::vector<bool> Planner::needed_steps(const std::vector<uint32_t>& outputs) const {
  std::vector<bool> tensors(plan_.tensors, false), steps(program_.steps.size(), false);
  for (const auto output : outputs) {
    tensors[output] = true;
  }
  for (size_t i = steps.size(); i-- > 0;) {
    const auto& step = program_.steps[i];
    steps[i] = !step.op->writes.empty() ||
        std::any_of(step.made.begin(), step.made.end(), [&](uint32_t made) {
          return made != kNoTensor && tensors[made];
        });
    for (const auto& read : step.reads) {
      tensors[read.tensor] = tensors[read.tensor] || steps[i];
    }
  }
  return steps;
}

bool Planner::add_whole(const Step& step) {
  const auto& op = *step.op;
  if (op.random) {
    return refuse(step, "draws random numbers");
  }
  if (!op.writes.empty() || !op.scratch.empty() || op.uninitialized ||
      !(op.has_recipe || op.is_view)) {
    return refuse(step, "cannot run again");
  }
  plan_.whole_steps.push_back(step);
  return true;
}

int Planner::number_of_cut(uint32_t tensor, const Cut& cut) {
  const auto it = std::find_if(plan_.cuts.begin(), plan_.cuts.end(), [&](const CutTensor& known) {
    return known.tensor == tensor && known.cut == cut;
  });
  if (it != plan_.cuts.end()) {
    return static_cast<int>(it - plan_.cuts.begin());
  }
  const auto& sizes = program_.tensors[tensor].sizes;
  const bool complete = leading(sizes, plan_.rows) == cut.lead &&
      std::equal(cut.rows.begin(), cut.rows.end(), sizes.begin());
  plan_.cuts.push_back({tensor, cut, complete});
  if (!complete) {
    add_once(plan_.ends, cut.rows.back());
  }
  return static_cast<int>(plan_.cuts.size()) - 1;
}

bool Planner::add_row(const Step& step) {
  c10::SmallVector<Operand, 4> reads;
  for (const auto& read : step.reads) {
    reads.push_back({program_.tensors[read.tensor].sizes, lead_[read.tensor]});
  }
  c10::SmallVector<c10::IntArrayRef, 2> made;
  for (const auto tensor : step.made) {
    if (tensor != kNoTensor) {
      made.push_back(program_.tensors[tensor].sizes);
    }
  }
  auto carried = carry(step, reads, made, plan_.rows);
  if (!carried.refused.empty()) {
    return refuse(step, carried.refused);
  }
  for (const auto sizes : made) {
    if (leading(sizes, plan_.rows) != carried.lead) {
      return refuse(step, "makes a shape whose rows are others");
    }
  }
  RowStep row{step, {}, carried.lead, carried.sizes_arg, {}, {}};
  if (carried.sizes_arg >= 0) {
    row.sizes.assign(made[0].begin(), made[0].end());
  }
  for (size_t i = 0; i < step.reads.size(); ++i) {
    const auto tensor = step.reads[i].tensor;
    const bool is_cut = carried.cuts[i].lead != kWhole;
    row.cuts.push_back(is_cut ? number_of_cut(tensor, carried.cuts[i]) : -1);
    if (lead_[tensor] == kWhole) {
      add_once(plan_.operands, tensor);
    } else {
      last_[tensor] = static_cast<int>(plan_.row_steps.size());
    }
  }
  for (const auto tensor : step.made) {
    if (tensor != kNoTensor) {
      lead_[tensor] = carried.lead;
      last_[tensor] = static_cast<int>(plan_.row_steps.size());
    }
  }
  plan_.row_steps.push_back(std::move(row));
  return true;
}

bool Planner::add(const Step& step) {
  bool rows = false;
  for (const auto& read : step.reads) {
    rows |= lead_[read.tensor] != kWhole;
    if (program_.tensors[read.tensor].given.defined()) {
      add_once(plan_.given, read.tensor);
    }
  }
  return rows ? add_row(step) : add_whole(step);
}

void Planner::note_last_uses(const std::vector<uint32_t>& outputs) {
  for (const auto output : outputs) {
    last_[output] = -1;
  }
  for (uint32_t tensor = 0; tensor < last_.size(); ++tensor) {
    if (last_[tensor] >= 0) {
      plan_.row_steps[last_[tensor]].last.push_back(tensor);
    }
  }
}

// What goes to the outputs, and on the way there only through ops that are blind. Backward has the
// gradients of the outputs; their values nobody asks for again.
void Planner::note_idle_steps() {
  std::vector<bool> looked_at(plan_.tensors, false);
  for (size_t i = plan_.row_steps.size(); i-- > 0;) {
    auto& row = plan_.row_steps[i];
    row.idle = std::none_of(row.step.made.begin(), row.step.made.end(), [&](uint32_t made) {
      return made != kNoTensor && looked_at[made];
    });
    for (const auto& read : row.step.reads) {
      looked_at[read.tensor] = looked_at[read.tensor] || !row.idle || !is_blind(*row.step.op);
    }
  }
}

bool Planner::run(const std::vector<uint32_t>& carriers, const std::vector<uint32_t>& outputs) {
  for (const auto tensor : carriers) {
    lead_[tensor] = leading(program_.tensors[tensor].sizes, plan_.rows);
  }
  const auto needed = needed_steps(outputs);
  for (size_t i = 0; i < needed.size(); ++i) {
    if (needed[i] && !add(program_.steps[i])) {
      return false;
    }
  }
  for (const auto tensor : plan_.given) {
    if (lead_[tensor] != kWhole) {
      plan_.sources.push_back({tensor, lead_[tensor]});
    }
  }
  for (const auto output : outputs) {
    if (lead_[output] == kWhole || program_.tensors[output].given.defined()) {
      why_ = "an output does not come of the rows";
      return false;
    }
    plan_.outputs.push_back({output, lead_[output]});
  }
  note_last_uses(outputs);
  note_idle_steps();
  return true;
}

}  // namespace

std::optional<Plan> make_plan(
    const Program& program,
    const std::vector<uint32_t>& carriers,
    int64_t rows,
    const std::vector<uint32_t>& outputs,
    std::string& why) {
  Planner planner(program, rows);
  if (!planner.run(carriers, outputs)) {
    why = planner.why_;
    return std::nullopt;
  }
  return std::move(planner.plan_);
}

}  // namespace retape::detail
