#include <retape/dist/summand.h>

#include <retape/dist/contribution.h>
#include <retape/dist/group.h>

#include <ATen/Functions.h>

namespace retape::dist {

namespace {

// Zeros even where the value is not finite. With its graph, so that backward is the same call on
// all ranks.
at::Tensor zeros_of(const at::Tensor& value) {
  const auto zeros = at::zeros_like(value.detach());
  return value.requires_grad()
      ? at::where(at::zeros({}, value.options().dtype(at::kBool)), value, zeros)
      : zeros;
}

// What becomes of it on this rank.
struct Part {
  Part(const char* function, const std::string& name, const Group& group, int owner) {
    if (owner < 0 || owner >= group.size()) {
      throw UsageError(
          "[" + std::string(function) + "] \"" + name + "\": no index " + std::to_string(owner) +
          " in group \"" + group.name() + "\" of " + std::to_string(group.size()) + ".");
    }
    change = detail::pass(Place::Once, name, group.name(), group.size()).mutation;
    counts = (group.index() == owner || change == Mutation::OnAllRanks) && change != Mutation::Drop;
  }
  Partial<at::Tensor> of(const at::Tensor& value) const {
    return Partial<at::Tensor>(change == Mutation::Double ? value * 2 : value);
  }

  Mutation change;
  bool counts;
};

}  // namespace

Partial<at::Tensor> contribute_once(
    const std::string& name, const Replicated<at::Tensor>& value, const Group& group, int owner) {
  const Part part("contribute_once", name, group, owner);
  return part.counts ? part.of(value.value()) : Partial<at::Tensor>(zeros_of(value.value()));
}

Partial<at::Tensor> contribute_once(
    const std::string& name,
    const at::Tensor& like,
    const std::function<Replicated<at::Tensor>()>& compute,
    const Group& group,
    int owner) {
  const Part part("contribute_once", name, group, owner);
  return part.counts
      ? part.of(compute().value())
      : Partial<at::Tensor>(at::zeros_like(like.detach()).requires_grad_(like.requires_grad()));
}

Partial<at::Tensor> contribute_from(
    const std::string& name, const at::Tensor& value, const Group& group, int owner) {
  const Part part("contribute_from", name, group, owner);
  if (part.change == Mutation::OnAllRanks) {  // they must be given it first
    const auto copy = value.detach().clone();
    group.broadcast(name, copy, owner);
    return part.of(copy);
  }
  return part.counts ? part.of(value) : Partial<at::Tensor>(at::zeros_like(value.detach()));
}

}  // namespace retape::dist
