#include "policy/anchors.h"

#include "tape/region.h"

#include <algorithm>

namespace retape::detail {

void Anchors::made(Value& value) {
  frontier_.add(value);
}

void Anchors::saved(Value& value) {
  since_cut_ += value.nbytes;
}

void Anchors::before_op() {
  constexpr size_t kOftenEnough = 8;
  if (++ops_ >= std::max(kOftenEnough, segments_.size())) {
    ops_ = 0;
    forget_dead_anchors();
  }
  const size_t in_use = frontier_.bytes();
  if (!proposal_.kept.empty()) {
    if (in_use < proposal_.anchor) {
      propose(in_use);
    } else if (since_cut_ - proposal_.bytes >= kNarrow * proposal_.anchor) {
      commit();
    }
  } else if (in_use > 0 && since_cut_ >= (kNarrow + 1) * in_use) {
    propose(in_use);
  }
}

void Anchors::propose(size_t in_use) {
  release(proposal_);
  proposal_.bytes = since_cut_;
  proposal_.anchor = in_use;
  frontier_.each([&](Value& value) {
    if (value.hold == Hold::None && value.recipe) {
      shelf_.keep(value);
      region_.counters.anchors.add(1);
      region_.counters.bytes_anchored.add(value.nbytes);
      proposal_.kept.push_back(c10::intrusive_ptr<Value>::reclaim_copy(&value));
    }
  });
}

void Anchors::forget_dead() {
  frontier_.forget_unused();
  forget_dead_anchors();
}

// Anchors of graphs that are gone: only the segment holds them.
void Anchors::forget_dead_anchors() {
  const auto forget = [&](Segment& segment) {
    for (auto& value : segment.kept) {
      if (value.use_count() == 1) {
        region_.counters.anchors.subtract(1);
        region_.counters.bytes_anchored.subtract(value->nbytes);
        segment.anchor -= std::min(segment.anchor, value->nbytes);
        value.reset();
      }
    }
    segment.kept.erase(
        std::remove(segment.kept.begin(), segment.kept.end(), nullptr), segment.kept.end());
  };
  std::for_each(segments_.begin(), segments_.end(), forget);
  if (!proposal_.kept.empty()) {
    forget(proposal_);
    if (proposal_.kept.empty()) {
      since_cut_ -= std::min(since_cut_, proposal_.bytes);
      proposal_ = Segment();
    }
  }
  segments_.erase(
      std::remove_if(
          segments_.begin(),
          segments_.end(),
          [](const auto& segment) { return segment.kept.empty(); }),
      segments_.end());
}

void Anchors::commit() {
  forget_dead_anchors();
  since_cut_ -= proposal_.bytes;
  segments_.push_back(std::move(proposal_));
  proposal_ = Segment();
  thin();
}

// Merges two segments, the earliest that can be, as long as the longer one replays within the peak
// that the end of forward has anyway.
void Anchors::thin() {
  size_t held = 0;
  for (const auto& segment : segments_) {
    held += segment.anchor;
  }
  for (bool merged = true; merged;) {
    merged = false;
    size_t before = 0;
    for (size_t i = 0; i + 1 < segments_.size(); ++i) {
      auto& segment = segments_[i];
      auto& next = segments_[i + 1];
      const size_t longer = segment.bytes + next.bytes + segment.anchor;
      const size_t peak = held - segment.anchor + segments_.back().bytes;
      if (before + longer <= peak) {
        held -= segment.anchor;
        next.bytes = longer;
        release(segment);
        segments_.erase(segments_.begin() + static_cast<std::ptrdiff_t>(i));
        merged = true;
        break;
      }
      before += segment.anchor;
    }
  }
}

void Anchors::release(Segment& segment) {
  for (const auto& value : segment.kept) {
    region_.counters.anchors.subtract(1);
    region_.counters.bytes_anchored.subtract(value->nbytes);
    if (value->hold == Hold::Kept && value->recipe) {
      shelf_.drop(*value);
    }
  }
  segment.kept.clear();
}

void Anchors::close() {
  release(proposal_);
  for (auto& segment : segments_) {
    for (const auto& value : segment.kept) {
      if (value->hold == Hold::Kept) {
        shelf_.sever(*value);  // nothing before it is needed for it any more
      }
    }
  }
  segments_.clear();
  frontier_.clear();
}

}  // namespace retape::detail
