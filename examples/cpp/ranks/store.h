// The store in which ranks meet.
#pragma once

#include <torch/csrc/distributed/c10d/Store.hpp>

#include <chrono>
#include <cstdint>
#include <string>

namespace ranks {

// A socket that listens at `host` and nowhere else: a store of c10d's own making listens
// everywhere, and asks nobody for a password.
struct Listener {
  int fd;
  uint16_t port;
};
Listener listen_at(const std::string& host, uint16_t port = 0);

// The address of this machine by which it reaches `host`: loopback's for loopback.
std::string own_address(const std::string& host);

// To connect may take longer than to wait for a rank that is connected: a busy machine starts many
// at once.
constexpr std::chrono::milliseconds kToConnect{std::chrono::minutes(1)};

// Takes the socket over.
c10::intrusive_ptr<c10d::Store> serve_store(
    const std::string& host, Listener listener, std::chrono::milliseconds timeout);

c10::intrusive_ptr<c10d::Store> reach_store(
    const std::string& host, uint16_t port, std::chrono::milliseconds timeout);

}  // namespace ranks
