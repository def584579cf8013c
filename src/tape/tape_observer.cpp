#include "tape/tape_observer.h"

namespace retape::detail {

namespace {

std::vector<ObserverSource>& sources() {
  static auto* all = new std::vector<ObserverSource>;
  return *all;
}

}  // namespace

Note::~Note() = default;
TapeObserver::~TapeObserver() = default;

std::unique_ptr<Note> TapeObserver::before_op(const OpInfo&, const torch::jit::Stack&) {
  return nullptr;
}

std::unique_ptr<Note> TapeObserver::made(const at::Tensor&) {
  return nullptr;
}

std::unique_ptr<Note> TapeObserver::wrote(const c10::Storage&, const View&, const Note*) {
  return nullptr;
}

at::Tensor TapeObserver::unpacked(const Tape&, const Value&, const View&, at::Tensor tensor, bool) {
  return tensor;
}

void add_observer_source(ObserverSource source) {
  sources().push_back(source);
}

TapeObservers observers_of_new_tape() {
  TapeObservers observers;
  for (const auto source : sources()) {
    if (auto observer = source()) {
      observers.push_back(std::move(observer));
    }
  }
  return observers;
}

}  // namespace retape::detail
