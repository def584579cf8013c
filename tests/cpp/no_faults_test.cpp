// A build without RETAPE_FAULTS, which is what users get: these sources, compiled as it compiles
// them.
#include "check/fault_hooks.h"
#include "tape/fault.h"

#include <retape/check.h>
#include <retape/error.h>

#include <gtest/gtest.h>

#include <string>

#ifdef RETAPE_FAULTS
#error "a test of builds without faults"
#endif

namespace {

using namespace retape::detail;

// Every place that could go wrong asks this, and is gone when the answer is a constant.
static_assert(!injected(Fault::OneUlp) && !injected(Fault::StopsLate) && !injected(Fault::None));

TEST(NoFaults, ThereAreNone) {
  EXPECT_TRUE(faults().empty());
}

TEST(NoFaults, NoneCanBeInjected) {
  for (const auto* id : {"one-ulp", "default-device", "gremlin"}) {
    try {
      inject(id);
      FAIL() << id << " was injected";
    } catch (const retape::UsageError& error) {
      EXPECT_NE(
          std::string(error.what()).find("this build has no faults to inject. Fix: "),
          std::string::npos)
          << error.what();
    }
    EXPECT_FALSE(is_injected(id));
  }
  inject("");
}

TEST(NoFaults, NothingIsEverHit) {
  hit();
  fault_hit();
  EXPECT_EQ(fault_hits(), 0u);
}

TEST(NoFaults, NoTapeIsObservedForThem) {
  EXPECT_EQ(faults_of_new_tape(), nullptr);
}

}  // namespace
