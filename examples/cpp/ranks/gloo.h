// Gloo process groups made in C++. The only source that sees Gloo's headers is gloo.cpp.
#pragma once

#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <chrono>
#include <string>

namespace ranks {

// Gives `group`, which has no backend yet, one that connects through `store`. `host`: the address
// to listen at. Blocks until all ranks have come.
void connect_gloo(
    c10d::ProcessGroup& group,
    const c10::intrusive_ptr<c10d::Store>& store,
    const std::string& host,
    std::chrono::milliseconds timeout);

}  // namespace ranks
