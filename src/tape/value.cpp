#include "tape/value.h"

#include "residency/refillable.h"
#include "tape/errors.h"
#include "tape/tape.h"

#include <torch/csrc/autograd/graph_task.h>

namespace retape::detail {

c10::weak_intrusive_ptr<c10::StorageImpl> Value::nullptr_storage() {
  return c10::weak_intrusive_ptr<c10::StorageImpl>(c10::intrusive_ptr<c10::StorageImpl>());
}

c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl> Value::no_origin() {
  using Strong = c10::intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>;
  return c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>(Strong());
}

Value::~Value() {
  release_resources();
}

void Value::release_resources() {
  if (recipe) {
    recipe->results[slot].value = nullptr;
    bury(std::move(recipe));
  }
  bury(std::move(data));
  bury(std::move(alias));
  home.reset();
  versions.clear();
  origin.reset();
  note.reset();
}

bool Value::home_moved() const {
  return versions.moved() || GivenWrites::since(made_at, home._unsafe_get_target());
}

bool Value::in_use_elsewhere() const {
  const size_t ours = (hold == Hold::Kept && !copied) ? 1 : 0;
  return !superseded && home.use_count() > ours;
}

bool Value::written_in_backward() const {
  return hold == Hold::Replayed && lent_to_backward.moved();
}

c10::Storage Value::here() {
  if (written_in_backward()) {
    drop();
  }
  const bool intact = !superseded && !home_moved();
  if ((hold == Hold::Replayed && (!lent || intact)) || copied ||
      (hold == Hold::Kept && intact && data.nbytes() == nbytes)) {
    return data;
  }
  if (hold == Hold::None && intact && !uninitialized) {
    if (auto impl = home.lock();
        impl && impl->nbytes() == nbytes && !(recipe && is_emptied(impl.get()))) {
      return c10::Storage(std::move(impl));
    }
  }
  if (!recipe) {
    throw_root_changed(*this);
  }
  drop();
  return {};
}

void Value::keep(c10::Storage storage) {
  data = std::move(storage);
  hold = Hold::Kept;
}

void Value::drop() {
  lent_to_backward = Versions::Seen();
  bury(std::move(data));
  data = c10::Storage();
  hold = Hold::None;
  lent = false;
}

bool Value::wanted(int current_pass) const {
  return tokens + readers.size() > (pass == current_pass ? done : 0);
}

void settle(Value& value, int current_pass) {
  if (value.hold == Hold::Replayed && !value.wanted(current_pass)) {
    value.drop();
  }
}

Input& Op::add_input(c10::intrusive_ptr<Value> value, const at::Tensor& seen) {
  auto& input = inputs.emplace_back(nullptr, seen);
  if (value) {
    read(static_cast<uint32_t>(inputs.size() - 1), std::move(value));
  }
  return input;
}

void Op::read(uint32_t index, c10::intrusive_ptr<Value> value) {
  auto& input = inputs[index];
  input.place = static_cast<uint32_t>(value->readers.size());
  value->readers.push_back({this, index});
  input.value = std::move(value);
}

Op::~Op() {
  for (auto& input : inputs) {
    if (!input.value) {
      continue;
    }
    Value& value = *input.value;
    const Reader last = value.readers.back();
    value.readers[input.place] = last;
    last.op->inputs[last.input].place = input.place;
    value.readers.pop_back();
    if (value.pass == satisfied && satisfied != Value::kNoPass) {
      --value.done;
    }
    settle(value, torch::autograd::get_current_graph_task_id());
  }
}

}  // namespace retape::detail
