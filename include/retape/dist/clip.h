// clip_grad_norm where parameters are spread over ranks and some are held by several.
//
//   clip_grad_norm({{ci_parameters, ci_group}, {expert_parameters, expert_group}}, 1.0, world);
#pragma once

#include <retape/dist/group.h>

#include <string>
#include <vector>

namespace retape::dist {

// Parameters whose gradients are the same bits on every rank of `replicas`. Only its leader counts
// them.
struct Held {
  std::vector<at::Tensor> parameters;
  Group replicas;
  bool counted_elsewhere = false;  // whoever leads: by a rank that is in no group with this one
};

struct ClipOptions {
  double norm_type = 2.0;  // or infinity
  bool error_if_nonfinite = false;
};

// Scales all gradients in place by min(1, max_norm / (norm + 1e-6)), and returns the norm over all
// distinct parameters of `everyone`: a parameter that is given twice, or held by several ranks,
// counts once. float64 inside; every rank gets the same bits. Where the norm is NaN all gradients
// become NaN. Ranks agree on max_norm and norm_type.
RETAPE_API double clip_grad_norm(
    const std::vector<Held>& held,
    double max_norm,
    const Group& everyone,
    ClipOptions options = {});

}  // namespace retape::dist
