#include "dist/mutated.h"

#include <ATen/ops/zeros_like.h>

namespace retape::dist::detail {

at::Tensor mutated(const at::Tensor& partial, Change change, int size) {
  switch (change.mutation) {
    case Mutation::Drop:
      return at::zeros_like(partial);
    case Mutation::Double:
      return partial * 2;
    case Mutation::Average:
      return partial / size;
    case Mutation::TimesGroup:
      return partial * size;
    case Mutation::Weighted:
      return partial * change.factor;
    default:
      return partial;
  }
}

}  // namespace retape::dist::detail
