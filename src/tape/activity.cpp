#include "tape/activity.h"

#include <utility>

namespace retape::detail {

namespace {

thread_local Activity activity;

}  // namespace

const Activity& Activity::of_this_thread() {
  return activity;
}

Replaying::Replaying() : before_(activity) {
  activity.replays = true;
}

Replaying::~Replaying() {
  activity.replays = before_.replays;
  activity.region = before_.region;
}

void Replaying::in(const std::string& region) {
  activity.region = &region;
}

ReplayedOp::ReplayedOp(const std::string& name) : before_(std::exchange(activity.op, &name)) {}

ReplayedOp::~ReplayedOp() {
  activity.op = before_;
}

}  // namespace retape::detail
