// Anchors: `full` around a whole model. Everything is dropped as it is made, except what is in use
// at narrow places: kept there, it cuts replay chains.
//
// Forward's length is not known beforehand, so anchors are set close together at first and thinned
// as it goes on. Backward runs from the end and frees each anchor it has passed: while it replays
// segment i, anchors 0..i are held. So early segments may be long and late ones must be short, and
// the peak comes to about sqrt(2 n) for n equal values (sqrt-spaced anchors: 2 sqrt(n)).
#pragma once

#include "policy/frontier.h"
#include "record/decider.h"

#include <vector>

namespace retape::detail {

class Anchors final : public Decider {
 public:
  Anchors(Region& region, Shelf& shelf) : region_(region), shelf_(shelf) {}

  void before_op() override;
  void made(Value& value) override;
  void saved(Value& value) override;
  void settle() override { forget_dead(); }
  void forget_dead() override;
  void close() override;

 private:
  // The stretch up to a narrow place, and what is kept there.
  struct Segment {
    size_t bytes = 0;   // that replaying it brings back
    size_t anchor = 0;  // bytes kept at its end
    std::vector<c10::intrusive_ptr<Value>> kept;
  };

  void propose(size_t in_use);
  void commit();
  void thin();
  void release(Segment& segment);
  void forget_dead_anchors();

  Region& region_;
  Shelf& shelf_;
  Frontier frontier_;
  size_t since_cut_ = 0;  // bytes saved since the last anchor
  size_t ops_ = 0;        // since it last looked for anchors of graphs that are gone
  Segment proposal_;      // narrowest place since, not yet an anchor; empty if none
  std::vector<Segment> segments_;
};

}  // namespace retape::detail
