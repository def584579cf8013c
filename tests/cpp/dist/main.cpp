#include <gmock/gmock.h>
#include <torch/torch.h>

#include <cstdlib>

// One thread: ranks are forked from this process.
int main(int argc, char** argv) {
  // c10d looks up the name of either end of each connection, loopback's too: a name server that does not answer
  // costs a second then, and not five.
  ::setenv("RES_OPTIONS", "timeout:1 attempts:1", 0);
  ::testing::InitGoogleMock(&argc, argv);
  torch::set_num_threads(1);
  return RUN_ALL_TESTS();
}
