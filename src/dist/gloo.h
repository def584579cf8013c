// Gloo process groups made in C++. The only source that sees Gloo's headers is gloo.cpp.
#pragma once

#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <chrono>
#include <string>

namespace retape::dist::detail {

// `host`: the address to listen at. Blocks until all `size` ranks have come.
c10::intrusive_ptr<c10d::ProcessGroup> make_gloo(
    const c10::intrusive_ptr<c10d::Store>& store,
    const std::string& host,
    int rank,
    int size,
    std::chrono::milliseconds timeout);

}  // namespace retape::dist::detail
