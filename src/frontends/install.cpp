#include "frontends/install.h"

#include "backward/lean_nodes.h"
#include "check/fault_hooks.h"
#include "check/replay_checker.h"
#include "record/saved_tensors.h"
#include "torch/engine_front.h"

#include <mutex>

namespace retape::detail {

void install() {
  static std::once_flag once;
  std::call_once(once, [] {
    set_after_op_source(&lean_node_for);
    add_observer_source(&faults_of_new_tape);
    add_observer_source(&checker_of_new_tape);
    install_engine_front(&hooks_of_this_thread);
  });
}

}  // namespace retape::detail
