#include <gmock/gmock.h>
#include <torch/torch.h>

#include <dlfcn.h>
#include <netdb.h>

// c10d asks for the name of either end of each connection, loopback's too, which takes as long as a
// name server takes to answer or not to. Here they have numbers: limits of time are those of the
// library.
extern "C" int getnameinfo(
    const sockaddr* address,
    socklen_t size,
    char* host,
    socklen_t host_size,
    char* service,
    socklen_t service_size,
    int flags) {
  static const auto libc = reinterpret_cast<decltype(&::getnameinfo)>(
      ::dlsym(RTLD_NEXT, "getnameinfo"));
  return libc(address, size, host, host_size, service, service_size, flags | NI_NUMERICHOST);
}

// One thread: ranks are forked from this process.
int main(int argc, char** argv) {
  ::testing::InitGoogleMock(&argc, argv);
  torch::set_num_threads(1);
  return RUN_ALL_TESTS();
}
