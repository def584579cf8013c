#include "dist/liveness_check.h"

#include <algorithm>
#include <iterator>
#include <sstream>
#include <thread>

namespace retape::dist::detail {

namespace {

using Clock = std::chrono::steady_clock;

// Looks again and again until all are there or time is up. It does not wait in the store: others
// may share the connection.
void look_for(
    size_t size,
    const std::function<bool(size_t)>& is_there,
    Clock::time_point until = Clock::time_point::max()) {
  until = std::min(until, Clock::now() + kPatience);
  for (size_t i = 0; i < size; ++i) {
    while (!is_there(i) && Clock::now() < until) {
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
  }
}

}  // namespace

int64_t RollCall::times() const {
  return board_.store->add(board_.key("asked"), 0);
}

bool RollCall::called() const {
  return board_.has("called");
}

void RollCall::answer(size_t index, Answer answer) const {
  board_.write("answer/" + std::to_string(index), std::string(1, static_cast<char>(answer)));
}

void RollCall::join(size_t index) const {
  board_.decide("here/" + std::to_string(index), "0");
}

void RollCall::be_there(size_t index, int64_t times) const {
  board_.write("here/" + std::to_string(index), std::to_string(times));
}

void RollCall::leave(size_t index) const {
  board_.write("left/" + std::to_string(index), "");
  board_.write("left", "");
}

bool RollCall::somebody_left() const {
  return board_.has("left");
}

bool RollCall::has_left(size_t index) const {
  return board_.has("left/" + std::to_string(index));
}

bool RollCall::has_joined(size_t index) const {
  return board_.has("here/" + std::to_string(index));
}

std::vector<Answer> RollCall::call(size_t index, Answer own) {
  answer(index, own);
  board_.write("called", "");
  board_.store->add(board_.key("asked"), 1);
  std::vector<Answer> answers(size_, Answer::None);
  look_for(size_, [&](size_t i) {
    if (const auto text = board_.read("answer/" + std::to_string(i))) {
      answers[i] = static_cast<Answer>(text->at(0));
    }
    return answers[i] != Answer::None || !has_joined(i) || said();
  });
  return answers;
}

std::vector<bool> RollCall::ask(const std::function<void()>& meanwhile, Clock::time_point until) {
  const auto asked = static_cast<uint64_t>(board_.store->add(board_.key("asked"), 1));
  std::vector<bool> there(size_, false);
  look_for(
      size_,
      [&](size_t i) {
        meanwhile();
        there[i] = board_.number("here/" + std::to_string(i)) >= asked;
        return there[i] || !has_joined(i) || has_left(i);
      },
      until);
  return there;
}

CollectiveError RollCall::say(const CollectiveError& error) const {
  return error_from(board_.decide("said", written(error)));
}

std::optional<CollectiveError> RollCall::said() const {
  const auto text = board_.read("said");
  return text ? std::optional(error_from(*text)) : std::nullopt;
}

std::string written(const CollectiveError& error) {
  return numbers_text(error.ranks()) + "\n" + error.what();
}

CollectiveError error_from(const std::string& written) {
  const auto end = written.find('\n');
  return CollectiveError(written.substr(end + 1), numbers_from(written.substr(0, end)));
}

std::string numbers_text(const std::vector<int>& numbers) {
  std::string text;
  for (const int number : numbers) {
    text += (text.empty() ? "" : " ") + std::to_string(number);
  }
  return text;
}

std::vector<int> numbers_from(const std::string& text) {
  std::istringstream numbers(text);
  return {std::istream_iterator<int>(numbers), std::istream_iterator<int>()};
}

}  // namespace retape::dist::detail
