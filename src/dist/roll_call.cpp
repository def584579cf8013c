#include "dist/roll_call.h"

#include <chrono>
#include <iterator>
#include <sstream>

namespace retape::dist::detail {

namespace {

using Clock = std::chrono::steady_clock;
using Milliseconds = std::chrono::milliseconds;

constexpr Milliseconds kPatience{1000};

}  // namespace

RollCall::RollCall(c10::intrusive_ptr<c10d::Store> store, std::string prefix, int size, int index)
    : store_(std::move(store)), prefix_(std::move(prefix)), size_(size), index_(index) {}

bool RollCall::called() {
  return store_->check({prefix_ + "called"});
}

void RollCall::answer(Answer answer) {
  store_->set(prefix_ + "answer/" + std::to_string(index_), std::string(1, static_cast<char>(answer)));
}

std::vector<Answer> RollCall::call(Answer own) {
  answer(own);
  store_->set(prefix_ + "called", "");
  const auto until = Clock::now() + kPatience;
  std::vector<Answer> answers;
  for (int i = 0; i < size_; ++i) {
    const auto key = prefix_ + "answer/" + std::to_string(i);
    const auto left = std::chrono::duration_cast<Milliseconds>(until - Clock::now());
    if (left.count() > 0 && !store_->check({key})) {
      try {
        store_->wait({key}, left);
      } catch (const c10::Error&) {
        // Asked for below: a store that is gone raises again.
      }
    }
    answers.push_back(store_->check({key}) ? static_cast<Answer>(store_->get_to_str(key).at(0)) : Answer::None);
  }
  return answers;
}

void RollCall::say(const CollectiveError& error) {
  std::string ranks;
  for (const int rank : error.ranks()) {
    ranks += std::to_string(rank) + " ";
  }
  store_->set(prefix_ + "said", ranks + "\n" + error.what());
}

std::optional<CollectiveError> RollCall::said() {
  if (!store_->check({prefix_ + "said"})) {
    return std::nullopt;
  }
  const auto said = store_->get_to_str(prefix_ + "said");
  const auto end = said.find('\n');
  std::istringstream numbers(said.substr(0, end));
  return CollectiveError(
      said.substr(end + 1), std::vector<int>(std::istream_iterator<int>(numbers), std::istream_iterator<int>()));
}

}  // namespace retape::dist::detail
