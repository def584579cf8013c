// The batch that golden.json was made on: closed form, no random numbers.
#pragma once

#include <pi05/config.h>

namespace pi05 {

struct Batch {
  Tensor images;        // [batch, image tokens, prefix width]: already embedded
  Tensor images_there;  // bool; false is padding, here and below
  Tensor language, language_there;
  Tensor indicator;
  Tensor action_tokens, action_tokens_there;
  Tensor actions;        // [batch, chunk, action size]
  Tensor actions_there;  // [batch, chunk]
  Tensor action_sizes;   // [batch]: how many numbers of an action count
  Tensor noise;          // as actions; noise and time are given, not drawn in forward
  Tensor time;           // [batch]
};

// `phase` is added to the waves that images, actions and noise are made of: another one, another
// batch. The golden one has 0, and the sizes of a default config. Has padding of every kind, in a
// batch of 2 or more. For vocabularies of at least 10 words and 7 actions.
Batch closed_form_batch(const Config& config, double phase = 0);

// amplitude * sin(step * (i + 1) + phase), in float64.
Tensor wave(int64_t numel, double amplitude, double step, double phase);

}  // namespace pi05
