#include "check/replay_checker.h"
#include "record/token.h"

#include <retape/check.h>
#include <retape/error.h>

#include <torch/csrc/autograd/graph_task.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <charconv>
#include <cstdlib>
#include <mutex>
#include <string_view>

namespace retape {

namespace detail {

namespace {

void note_step();

uint64_t from_environment() {
  const char* set = std::getenv("RETAPE_CHECK");
  const std::string_view text = set == nullptr ? "" : set;
  if (text.empty()) {
    return 0;
  }
  uint64_t n = 0;
  const char* end = text.data() + text.size();
  const auto read = std::from_chars(text.data(), end, n);  // digits, and nothing but digits
  if (read.ec != std::errc() || read.ptr != end) {
    throw UsageError(
        "[RETAPE_CHECK] expected a number of steps below 2^64, in digits, got \"" +
        std::string(text) + "\". Fix: RETAPE_CHECK=100 checks every 100th step, 0 none.");
  }
  return n;
}

std::array<int, 64> no_passes() {
  std::array<int, 64> none{};
  none.fill(-1);
  return none;
}

struct Schedule {
  std::atomic<uint64_t> every{from_environment()};
  std::atomic<uint64_t> steps{0};
  std::atomic<int> last_pass{-1};
  std::mutex passes_mutex;
  std::array<int, 64> passes = no_passes();  // that were counted last, in a ring
  size_t next_pass = 0;
  const std::shared_ptr<ReplayChecker> raising = std::make_shared<ReplayChecker>(false, false);
};

Schedule& schedule() {
  static auto* instance = [] {
    auto* made = new Schedule;
    set_unpack_listener(made->every.load() != 0 ? &note_step : nullptr);
    return made;
  }();
  return *instance;
}

// A backward asks for a saved tensor: counts it as a step, once.
void note_step() {
  auto& plan = schedule();
  const int pass = torch::autograd::get_current_graph_task_id();
  if (pass < 0 || plan.last_pass.exchange(pass, std::memory_order_relaxed) == pass) {
    return;
  }
  // Passes of several threads alternate, and so do one and those that run inside it.
  const std::lock_guard<std::mutex> lock(plan.passes_mutex);
  if (std::find(plan.passes.begin(), plan.passes.end(), pass) == plan.passes.end()) {
    plan.passes[plan.next_pass++ % plan.passes.size()] = pass;
    plan.steps.fetch_add(1, std::memory_order_relaxed);
  }
}

std::mutex observer_mutex;
std::atomic<bool> is_observed{false};
std::shared_ptr<ReplayChecker>& observer() {
  static auto* instance = new std::shared_ptr<ReplayChecker>;
  return *instance;
}

std::mutex finder_mutex;
std::function<std::string()>& finder() {
  static auto* instance = new std::function<std::string()>;
  return *instance;
}

}  // namespace

std::shared_ptr<ReplayChecker> ReplayChecker::now() {
  if (is_observed.load(std::memory_order_acquire)) {
    std::lock_guard<std::mutex> lock(observer_mutex);
    if (observer()) {
      return observer();
    }
  }
  auto& plan = schedule();
  const uint64_t every = plan.every.load(std::memory_order_relaxed);
  const bool due = every != 0 && plan.steps.load(std::memory_order_relaxed) % every == 0;
  return due ? plan.raising : nullptr;
}

void set_source_finder(std::function<std::string()> to) {
  std::lock_guard<std::mutex> lock(finder_mutex);
  finder() = std::move(to);
}

std::string source_of_this_op() {
  std::function<std::string()> find;
  {
    std::lock_guard<std::mutex> lock(finder_mutex);
    find = finder();
  }
  return find ? find() : "";
}

}  // namespace detail

void check_every(uint64_t n) {
  auto& plan = detail::schedule();
  plan.every.store(n);
  plan.steps.store(0);
  detail::set_unpack_listener(n != 0 ? &detail::note_step : nullptr);
}

uint64_t check_every() {
  return detail::schedule().every.load();
}

CheckStats check_stats() {
  const auto& plan = detail::schedule();
  return {plan.steps.load(), plan.raising->values_checked()};
}

Observer::Observer(Options options)
    : checker_(std::make_shared<detail::ReplayChecker>(true, options.copies)) {
  std::lock_guard<std::mutex> lock(detail::observer_mutex);
  if (detail::observer()) {
    throw UsageError("[Observer] another one is looking. Fix: one at a time in a process.");
  }
  detail::observer() = checker_;
  detail::is_observed.store(true, std::memory_order_release);
}

Observer::~Observer() {
  std::lock_guard<std::mutex> lock(detail::observer_mutex);
  detail::observer().reset();
  detail::is_observed.store(false, std::memory_order_release);
}

std::vector<Finding> Observer::findings() const {
  return checker_->findings();
}

std::vector<SeenRegion> Observer::regions() const {
  return checker_->regions();
}

uint64_t Observer::values_checked() const {
  return checker_->values_checked();
}

uint64_t Observer::bytes_held() const {
  return checker_->bytes_held();
}

}  // namespace retape
