#include "backward/rows/rules.h"

#include <algorithm>
#include <unordered_map>

namespace retape::detail {

namespace {

using c10::IntArrayRef;

struct Call {
  const Step& step;
  c10::ArrayRef<Operand> reads;
  c10::ArrayRef<IntArrayRef> made;
  int64_t rows;

  const c10::IValue& arg(int index) const { return step.args[index]; }

  // The tensor that is argument `index`; null: there is none.
  const Operand* operand(int index) const {
    for (size_t i = 0; i < reads.size(); ++i) {
      if (step.reads[i].arg == index) {
        return &reads[i];
      }
    }
    return nullptr;
  }
};

Carried no(std::string why) {
  Carried carried;
  carried.refused = std::move(why);
  return carried;
}

Carried yes(const Call& call, int lead) {
  Carried carried;
  carried.lead = lead;
  carried.cuts.resize(call.reads.size());
  return carried;
}

bool carries(const Operand* operand) {
  return operand != nullptr && operand->lead != kWhole;
}

int64_t wrapped(int64_t dim, int64_t dims) {
  return dim < 0 ? dim + dims : dim;
}

std::string over_dimension(int64_t dim) {
  return "works along dimension " + std::to_string(dim) + ", and rows are there";
}

// ---- elementwise

// A whole tensor beside one with rows: the same for all rows, or cut. False: neither.
bool cut_for(IntArrayRef sizes, IntArrayRef result, int lead, Cut& cut) {
  const int missing = static_cast<int>(result.size()) - static_cast<int>(sizes.size());
  bool varies = false;
  for (int dim = std::max(0, missing); dim < lead; ++dim) {
    const int64_t size = sizes[dim - missing];
    if (size != 1 && size != result[dim]) {
      return false;
    }
    varies |= size != 1;
  }
  if (varies) {
    cut.lead = lead - missing;
    cut.rows.assign(result.begin() + missing, result.begin() + lead);
  }
  return missing >= 0;
}

Carried elementwise(const Call& call, int) {
  if (!call.step.lists.empty() || call.step.op->handle.hasTag(at::Tag::out)) {
    return no("has a list of tensors, or out=");
  }
  const auto result = call.made[0];
  int lead = kWhole;
  for (const auto& read : call.reads) {
    if (read.lead == kWhole) {
      continue;
    }
    const bool same = read.sizes.size() == result.size() && (lead == kWhole || lead == read.lead) &&
        std::equal(result.begin(), result.begin() + read.lead, read.sizes.begin());
    if (!same) {
      return no("sets rows beside other rows");
    }
    lead = read.lead;
  }
  auto carried = yes(call, lead);
  for (size_t i = 0; i < call.reads.size(); ++i) {
    const auto& writes = call.step.op->writes;
    const bool written = std::find(writes.begin(), writes.end(), call.step.reads[i].arg) !=
        writes.end();
    if (call.reads[i].lead != kWhole) {
      continue;
    }
    if (written) {
      return no("writes rows into a tensor without rows");
    }
    if (!cut_for(call.reads[i].sizes, result, lead, carried.cuts[i])) {
      return no("sets rows beside a tensor of another shape");
    }
  }
  return carried;
}

// ---- along some dimensions

// `index`: argument that names them. `grown`: in the numbering of a result with one more.
Carried along_dims(const Call& call, int index, int grown) {
  const auto* self = call.operand(0);
  if (call.reads.size() != 1 || !carries(self)) {
    return no("reads other tensors beside rows");
  }
  const auto& arg = call.arg(index);
  std::vector<int64_t> dims;
  if (arg.isInt()) {
    dims.push_back(arg.toInt());
  } else if (arg.isIntList()) {
    dims = arg.toIntVector();
  }
  if (dims.empty()) {
    return no("works over all dimensions, and rows among them");
  }
  for (const auto dim : dims) {
    if (wrapped(dim, static_cast<int64_t>(self->sizes.size()) + grown) < self->lead) {
      return no(over_dimension(dim));
    }
  }
  return yes(call, self->lead);
}

Carried along(const Call& call, int index) {
  return along_dims(call, index, 0);
}
Carried inserted(const Call& call, int index) {
  return along_dims(call, index, 1);
}

Carried exchanged(const Call& call, int index) {
  auto carried = along(call, index);
  return carried.refused.empty() ? along(call, index + 1) : carried;
}

Carried permuted(const Call& call, int index) {
  const auto* self = call.operand(0);
  const auto dims = call.arg(index).toIntVector();
  for (int dim = 0; dim < self->lead; ++dim) {
    if (wrapped(dims[dim], static_cast<int64_t>(dims.size())) != dim) {
      return no(over_dimension(dim));
    }
  }
  return yes(call, self->lead);
}

// cat, stack: `grown` if there is a new dimension.
Carried joined_along(const Call& call, int index, int grown) {
  const int lead =
      std::max_element(call.reads.begin(), call.reads.end(), [](const auto& a, const auto& b) {
        return a.lead < b.lead;
      })->lead;
  const int64_t dims = static_cast<int64_t>(call.reads[0].sizes.size()) + grown;
  if (wrapped(call.arg(index).toInt(), dims) < lead) {
    return no(over_dimension(call.arg(index).toInt()));
  }
  auto carried = yes(call, lead);
  for (size_t i = 0; i < call.reads.size(); ++i) {
    const auto& read = call.reads[i];
    const bool same = static_cast<int64_t>(read.sizes.size()) + grown == dims &&
        std::equal(read.sizes.begin(), read.sizes.begin() + lead, call.made[0].begin());
    if (!same || (read.lead != kWhole && read.lead != lead)) {
      return no("sets rows beside other rows");
    }
    if (read.lead == kWhole) {
      carried.cuts[i].lead = lead;
      carried.cuts[i].rows.assign(read.sizes.begin(), read.sizes.begin() + lead);
    }
  }
  return carried;
}

Carried joined(const Call& call, int index) {
  return joined_along(call, index, 0);
}
Carried stacked(const Call& call, int index) {
  return joined_along(call, index, 1);
}

// The last dimensions are normalised; weight and bias have those.
Carried normalised(const Call& call, int index) {
  const auto* self = call.operand(0);
  const auto count = static_cast<int64_t>(call.arg(index).toIntVector().size());
  if (!carries(self)) {
    return no("takes rows for a weight");
  }
  if (static_cast<int64_t>(self->sizes.size()) - count < self->lead) {
    return no("normalises over rows");
  }
  for (const auto& read : call.reads) {
    if (read.lead != kWhole && &read != self) {
      return no("takes rows for a weight");
    }
  }
  return yes(call, self->lead);
}

Carried padded(const Call& call, int index) {
  const auto* self = call.operand(0);
  const auto touched = static_cast<int64_t>(call.arg(index).toIntVector().size() / 2);
  if (static_cast<int64_t>(self->sizes.size()) - touched < self->lead) {
    return no("adds rows");
  }
  return yes(call, self->lead);
}

// ---- shapes

Carried reshaped(const Call& call, int index) {
  const int lead = leading(call.made[0], call.rows);
  if (lead == kWhole) {
    return no("makes a shape whose rows are others");
  }
  auto carried = yes(call, lead);
  carried.sizes_arg = index;
  return carried;
}

Carried expanded(const Call& call, int index) {
  const auto* self = call.operand(0);
  if (self->sizes.size() != call.made[0].size() ||
      !std::equal(self->sizes.begin(), self->sizes.begin() + self->lead, call.made[0].begin())) {
    return no("repeats rows");
  }
  auto carried = yes(call, self->lead);
  carried.sizes_arg = index;
  return carried;
}

// ---- products

Carried product(const Call& call, int first) {
  const auto* left = call.operand(first);
  const auto* right = call.operand(first + 1);
  if (!carries(left) || left->lead != 1 || carries(right)) {
    return no("multiplies by a matrix that rows make, or sums over rows");
  }
  auto carried = yes(call, 1);
  if (first == 1) {
    const auto* added = call.operand(0);
    auto& cut = carried.cuts[added - call.reads.data()];
    if (carries(added) && added->sizes != call.made[0]) {
      return no("sets rows beside other rows");
    }
    if (!carries(added) && !cut_for(added->sizes, call.made[0], 1, cut)) {
      return no("sets rows beside a tensor of another shape");
    }
  }
  return carried;
}

// A product of small matrices for each row, or one product of all.
Carried batched_product(const Call& call, int) {
  const auto* left = call.operand(0);
  const auto* right = call.operand(1);
  if (carries(left) && left->lead == 1 && carries(right) && right->lead == 1) {
    return yes(call, 1);
  }
  if (carries(left) && left->lead == 2 && left->sizes[0] == 1 && !carries(right)) {
    return yes(call, 2);
  }
  return no("multiplies by a matrix that rows make, or sums over rows");
}

// ---- by name

struct Rule {
  Carried (*apply)(const Call&, int);
  int index = 0;       // of the argument that decides
  bool blind = false;  // its backward looks at no values, neither of arguments nor of results
};

constexpr bool kBlind = true;

const std::unordered_map<std::string, Rule>& rules() {
  static const auto* all = new std::unordered_map<std::string, Rule>{
      {"aten::mm", {product, 0}},
      {"aten::addmm", {product, 1}},
      {"aten::bmm", {batched_product}},
      {"aten::view", {reshaped, 1, kBlind}},
      {"aten::_unsafe_view", {reshaped, 1, kBlind}},
      {"aten::_reshape_alias", {reshaped, 1, kBlind}},
      {"aten::expand", {expanded, 1, kBlind}},
      {"aten::unsqueeze", {inserted, 1, kBlind}},
      {"aten::squeeze.dim", {along, 1, kBlind}},
      {"aten::squeeze.dims", {along, 1, kBlind}},
      {"aten::select.int", {along, 1, kBlind}},
      {"aten::slice.Tensor", {along, 1, kBlind}},
      {"aten::split.Tensor", {along, 2, kBlind}},
      {"aten::split_with_sizes", {along, 2, kBlind}},
      {"aten::unbind.int", {along, 1, kBlind}},
      {"aten::transpose.int", {exchanged, 1, kBlind}},
      {"aten::permute", {permuted, 1, kBlind}},
      {"aten::cat", {joined, 1, kBlind}},
      {"aten::stack", {stacked, 1, kBlind}},
      {"aten::constant_pad_nd", {padded, 1, kBlind}},
      {"aten::flip", {along, 1, kBlind}},
      {"aten::alias", {elementwise, 0, kBlind}},
      {"aten::detach", {elementwise, 0, kBlind}},
      {"aten::_to_copy", {elementwise, 0, kBlind}},
      {"aten::clone", {elementwise, 0, kBlind}},
      {"aten::add.Tensor", {elementwise, 0, kBlind}},
      {"aten::sub.Tensor", {elementwise, 0, kBlind}},
      {"aten::neg", {elementwise, 0, kBlind}},
      {"aten::ones_like", {elementwise}},
      {"aten::full_like", {elementwise}},
      {"aten::masked_fill.Tensor", {elementwise}},
      {"aten::_softmax", {along, 1}},
      {"aten::_log_softmax", {along, 1}},
      {"aten::_safe_softmax", {along, 1}},
      {"aten::sum.dim_IntList", {along, 1, kBlind}},
      {"aten::mean.dim", {along, 1, kBlind}},
      {"aten::amax", {along, 1}},
      {"aten::amin", {along, 1}},
      {"aten::prod.dim_int", {along, 1}},
      {"aten::logsumexp", {along, 1}},
      {"aten::std.correction", {along, 1}},
      {"aten::var.correction", {along, 1}},
      {"aten::var_mean.correction", {along, 1}},
      {"aten::linalg_vector_norm", {along, 2}},
      {"aten::norm.ScalarOpt_dim", {along, 2}},
      {"aten::any.dim", {along, 1}},
      {"aten::all.dim", {along, 1}},
      {"aten::argmax", {along, 1}},
      {"aten::argmin", {along, 1}},
      {"aten::max.dim", {along, 1}},
      {"aten::min.dim", {along, 1}},
      {"aten::topk", {along, 2}},
      {"aten::sort", {along, 1}},
      {"aten::cumsum", {along, 1}},
      {"aten::cumprod", {along, 1}},
      {"aten::glu", {along, 1}},
      {"aten::native_layer_norm", {normalised, 1}},
      {"aten::_fused_rms_norm", {normalised, 1}},
  };
  return *all;
}

const Rule* rule_of(const OpInfo& op) {
  const auto& name = op.name;
  const auto it = rules().find(
      name.overload_name.empty() ? name.name : name.name + "." + name.overload_name);
  return it == rules().end() ? nullptr : &it->second;
}

}  // namespace

int leading(IntArrayRef sizes, int64_t rows) {
  int64_t product = 1;
  for (size_t dim = 0; dim < sizes.size(); ++dim) {
    product *= sizes[dim];
    if (product == rows) {
      return static_cast<int>(dim) + 1;
    }
  }
  return kWhole;
}

Carried carry(
    const Step& step, c10::ArrayRef<Operand> reads, c10::ArrayRef<IntArrayRef> made, int64_t rows) {
  const auto& op = *step.op;
  const Call call{step, reads, made, rows};
  if (op.random) {
    return no("draws random numbers");
  }
  if (op.uninitialized || made.empty()) {
    return no("makes memory for others to write");
  }
  if (const auto* rule = rule_of(op)) {
    return rule->apply(call, rule->index);
  }
  return op.pointwise ? elementwise(call, 0) : no("is not known to treat rows apart");
}

bool is_blind(const OpInfo& op) {
  const auto* rule = rule_of(op);
  return rule != nullptr && rule->blind;
}

}  // namespace retape::detail
