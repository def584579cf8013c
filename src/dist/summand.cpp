#include <retape/dist/summand.h>

#include <retape/dist/contribution.h>
#include <retape/dist/group.h>

#include <ATen/Functions.h>

namespace retape::dist {

namespace {

// Zeros even where the value is not finite. With its graph, so that backward is the same call on all ranks.
at::Tensor zeros_of(const at::Tensor& value) {
  const auto zeros = at::zeros_like(value.detach());
  return value.requires_grad() ? at::where(at::zeros({}, value.options().dtype(at::kBool)), value, zeros) : zeros;
}

}  // namespace

Partial<at::Tensor> contribute_once(
    const std::string& name, const Replicated<at::Tensor>& value, const Group& group, int owner) {
  if (owner < 0 || owner >= group.size()) {
    throw UsageError(
        "[contribute_once] \"" + name + "\": no index " + std::to_string(owner) + " in group \"" + group.name() +
        "\" of " + std::to_string(group.size()) + ".");
  }
  const auto change = detail::pass(Place::Once, name, group.name(), group.size()).mutation;
  const bool own = group.index() == owner || change == Mutation::OnAllRanks;
  if (!own || change == Mutation::Drop) {
    return Partial<at::Tensor>(zeros_of(value.value()));
  }
  return Partial<at::Tensor>(change == Mutation::Double ? value.value() * 2 : value.value());
}

}  // namespace retape::dist
