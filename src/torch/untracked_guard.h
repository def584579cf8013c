// UntrackedGuard: ops that run while it lives are seen neither by autograd, nor by a user's
// dispatch modes, nor by a tape: those of Retape's own checks.
#pragma once

#include "torch/interceptor.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

namespace retape::detail {

struct UntrackedGuard {
  at::AutoDispatchBelowADInplaceOrView below_autograd;
  c10::impl::ExcludeDispatchKeyGuard no_modes{
      c10::DispatchKeySet({c10::DispatchKey::Python, c10::DispatchKey::PythonTLSSnapshot})};
  NotIntercepted no_tape;
};

}  // namespace retape::detail
