#include "store.h"

#include <retape/error.h>

#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>

namespace ranks {

using retape::UsageError;

Listener listen_at(const std::string& host, uint16_t port) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE;
  addrinfo* found = nullptr;
  const int failed = ::getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found);
  if (failed != 0) {
    throw UsageError(
        "[World] no such address to listen at: " + host + ": " + ::gai_strerror(failed) + ".");
  }
  const std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> address(found, &::freeaddrinfo);
  const int fd = ::socket(address->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const int on = 1;
  sockaddr_storage bound{};
  socklen_t size = sizeof bound;
  if (fd < 0 || ::setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) != 0 ||
      ::bind(fd, address->ai_addr, address->ai_addrlen) != 0 || ::listen(fd, SOMAXCONN) != 0 ||
      ::getsockname(fd, reinterpret_cast<sockaddr*>(&bound), &size) != 0) {
    const std::string why = std::strerror(errno);
    if (fd >= 0) {
      ::close(fd);
    }
    throw UsageError(
        "[World] cannot listen at " + host + ":" + std::to_string(port) + ": " + why + ".");
  }
  const auto in_network_order = bound.ss_family == AF_INET6
      ? reinterpret_cast<const sockaddr_in6&>(bound).sin6_port
      : reinterpret_cast<const sockaddr_in&>(bound).sin_port;
  return {fd, ntohs(in_network_order)};
}

std::string own_address(const std::string& host) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_DGRAM;  // connecting one sends nothing
  addrinfo* found = nullptr;
  const int failed = ::getaddrinfo(host.c_str(), "1", &hints, &found);
  if (failed != 0) {
    throw UsageError("[World] no such address: " + host + ": " + ::gai_strerror(failed) + ".");
  }
  const std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> address(found, &::freeaddrinfo);
  const int fd = ::socket(address->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  sockaddr_storage own{};
  socklen_t size = sizeof own;
  char text[NI_MAXHOST] = "";
  const bool known = fd >= 0 && ::connect(fd, address->ai_addr, address->ai_addrlen) == 0 &&
      ::getsockname(fd, reinterpret_cast<sockaddr*>(&own), &size) == 0 &&
      ::getnameinfo(
          reinterpret_cast<sockaddr*>(&own), size, text, sizeof text, nullptr, 0, NI_NUMERICHOST) ==
          0;
  const std::string why = std::strerror(errno);
  if (fd >= 0) {
    ::close(fd);
  }
  if (!known) {
    throw UsageError("[World] " + host + " cannot be reached: " + why + ".");
  }
  return text;
}

namespace {

c10d::TCPStoreOptions options_for(uint16_t port, std::chrono::milliseconds timeout) {
  c10d::TCPStoreOptions options;
  options.port = port;
  options.timeout = std::max(timeout, kToConnect);
  options.waitWorkers = false;
  return options;
}

}  // namespace

c10::intrusive_ptr<c10d::Store> serve_store(
    const std::string& host, Listener listener, std::chrono::milliseconds timeout) {
  auto options = options_for(listener.port, timeout);
  options.isServer = true;
  options.masterListenFd = listener.fd;
  return c10::make_intrusive<c10d::TCPStore>(host, options);
}

c10::intrusive_ptr<c10d::Store> reach_store(
    const std::string& host, uint16_t port, std::chrono::milliseconds timeout) {
  return c10::make_intrusive<c10d::TCPStore>(host, options_for(port, timeout));
}

}  // namespace ranks
