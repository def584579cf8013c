#include <gmock/gmock.h>
#include <torch/torch.h>

// One thread: ranks are forked from this process.
int main(int argc, char** argv) {
  ::testing::InitGoogleMock(&argc, argv);
  torch::set_num_threads(1);
  return RUN_ALL_TESTS();
}
