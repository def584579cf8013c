// What goes wrong with models/pi05 where a layer is run again in backward, and not with Retape.
// Each control breaks one assumption of the second run; the first tests show that the re-runs are
// right as long as none is broken.
#include "naive_rerun.h"
#include "pi05_training.h"

namespace retape::testing {
namespace {

using Calls = std::map<std::pair<pi05::CacheUse, int64_t>, int>;

Way rerun_way(RerunOptions options = {}, Calls* calls = nullptr) {
  const auto layers = [=](const pi05::LayerFunction& run, const pi05::LayerCall& call) {
    return rerun_checkpoint(options, [=] {
      if (calls != nullptr) {
        ++(*calls)[{call.use, call.layer}];
      }
      return run(call);
    });
  };
  return {"each layer run again", layers, {}};
}

// Autograd is shown the tensors that are arguments by themselves, mask and positions. It does not
// look into lists and structs, where the streams and the cache are.
Way reentrant_way() {
  const auto layers = [](const pi05::LayerFunction& run, const pi05::LayerCall& call) {
    const size_t tower = call.streams[0].defined() ? 0 : 1;
    pi05::Streams out;
    out[tower] = reentrant_checkpoint(
        [=](const std::vector<Tensor>&) { return std::vector<Tensor>{run(call)[tower]}; },
        {call.mask, call.positions})[0];
    return out;
  };
  return {"each layer run again, reentrant", layers, {}};
}

void expect_retape_is_right(const TrainingStep& step, const Trained& plain) {
  for (const auto& way : retape_ways()) {
    expect_recomputed_right(step, plain, way);
  }
}

std::set<std::string> beginning_with(
    const std::vector<std::string>& beginnings, const Trained& trained) {
  std::set<std::string> names;
  for (const auto& [name, grad] : trained.grads) {
    for (const auto& beginning : beginnings) {
      if (name.starts_with(beginning)) {
        names.insert(name);
      }
    }
  }
  return names;
}

std::set<std::string> all_but(const std::vector<std::string>& beginnings, const Trained& trained) {
  const auto not_these = beginning_with(beginnings, trained);
  auto names = beginning_with({""}, trained);
  std::erase_if(names, [&](const auto& name) { return not_these.count(name) != 0; });
  return names;
}

// Gradients that depend on what the suffix's layers read from the cache: 39 if insulated, else 61.
std::set<std::string> after_a_read(const Trained& trained, bool insulation) {
  if (insulation) {
    return beginning_with({"et.", "ain.", "t1.", "t2."}, trained);
  }
  return all_but(
      {"pn.",
       "en.",
       "aout.",
       "da_head.",
       "da_emb.",
       "pt.2.n2.",
       "pt.2.q.",
       "pt.2.o.",
       "pt.2.gate.",
       "pt.2.up.",
       "pt.2.down."},
      trained);
}

// Silently: all gradients are there, and `names` differ, not by rounding.
void expect_wrong(const std::set<std::string>& names, const Trained& plain, const Trained& rerun) {
  EXPECT_TRUE(same_bits(plain.mse, rerun.mse));
  EXPECT_TRUE(same_bits(plain.ce, rerun.ce));
  const auto found = difference(plain, rerun);
  EXPECT_TRUE(found.missing.empty());
  EXPECT_EQ(found.wrong, names);
  EXPECT_GT(found.worst, 0.01);
}

TEST(Pi05Controls, RerunIsRightWhereTheSecondRunMeetsTheSameState) {
  for (const bool insulation : {true, false}) {
    for (const auto order : {Order::Joint, Order::MseFirst, Order::CeFirst}) {
      TrainingStep step;
      step.config.insulation = insulation;
      step.config.dropout = 0.3;
      step.order = order;
      Calls calls;
      const auto plain = train(step, plain_way());
      const auto rerun = train(step, rerun_way({}, &calls));
      const auto found = difference(plain, rerun);
      EXPECT_TRUE(found.missing.empty());
      EXPECT_TRUE(found.wrong.empty());
      EXPECT_LT(rerun.held, plain.held);
      EXPECT_FALSE(rerun.cache_is_forwards) << "the second run should have written the cache again";
      EXPECT_EQ(calls.size(), 6u);
      for (const auto& [layer, count] : calls) {
        // Without insulation both backward passes go through the prefix, and each runs it again.
        const bool twice = !insulation && order != Order::Joint &&
            layer.first == pi05::CacheUse::Write;
        EXPECT_EQ(count, twice ? 3 : 2);
      }
    }
  }
}

TEST(Pi05Controls, ReentrantRerunIsRightOnTensorsAlone) {
  int calls = 0;
  const auto weight = leaf({4, 4}, 1);
  const TensorsFunction function = [&](const std::vector<Tensor>& inputs) {
    return ++calls, std::vector<Tensor>{(inputs[0].mm(weight).sin() * inputs[1]).exp()};
  };
  const auto x = leaf({4, 4}, 2), y = leaf({4, 4}, 3);
  function({x, y})[0].sum().backward();
  const std::vector<Tensor> plain{x.grad(), y.grad(), weight.grad()};
  for (auto tensor : {x, y, weight}) {
    tensor.mutable_grad() = Tensor();
  }
  calls = 0;
  reentrant_checkpoint(function, {x, y})[0].sum().backward();
  EXPECT_EQ(calls, 2);
  EXPECT_TRUE(same_bits(plain[0], x.grad()));
  EXPECT_TRUE(same_bits(plain[1], y.grad()));
  EXPECT_TRUE(same_bits(plain[2], weight.grad()));
}

// The prefix, run again for its own loss, writes what it wrote at first; the suffix, run again
// after that, reads this and not what the code in between had made of it.
TEST(Pi05Controls, CachedValuesChangedBetweenWriteAndRead) {
  for (const bool insulation : {true, false}) {
    SCOPED_TRACE(insulation);
    TrainingStep step;
    step.config.insulation = insulation;
    step.change_keys = true;
    step.order = Order::CeFirst;
    const auto plain = train(step, plain_way());
    const auto names = after_a_read(plain, insulation);
    EXPECT_EQ(names.size(), insulation ? 39u : 61u);
    expect_wrong(names, plain, train(step, rerun_way()));
    expect_retape_is_right(step, plain);
  }
}

// The first forward's suffix, run again, reads what the second forward has written.
TEST(Pi05Controls, OneCacheForTwoForwards) {
  for (const bool insulation : {true, false}) {
    SCOPED_TRACE(insulation);
    TrainingStep step;
    step.config.insulation = insulation;
    step.forwards = 2;
    step.one_cache = true;
    const auto plain = train(step, plain_way());
    expect_wrong(after_a_read(plain, insulation), plain, train(step, rerun_way()));
    expect_retape_is_right(step, plain);
  }
}

TEST(Pi05Controls, RandomStateNotPreserved) {
  for (const bool insulation : {true, false}) {
    SCOPED_TRACE(insulation);
    TrainingStep step;
    step.config.insulation = insulation;
    step.config.dropout = 0.3;
    const auto plain = train(step, plain_way());
    const auto names = all_but(
        {"pn.", "en.", "aout.", "da_head."}, plain);  // these follow the last layer
    EXPECT_EQ(names.size(), 68u);
    RerunOptions options;
    options.preserve_rng = false;
    expect_wrong(names, plain, train(step, rerun_way(options)));
    expect_retape_is_right(step, plain);
  }
}

TEST(Pi05Controls, ReentrantWithContainers) {
  TrainingStep step;
  step.config.insulation = false;
  step.order = Order::MseOnly;
  const auto plain = train(step, plain_way());
  const auto found = difference(plain, train(step, reentrant_way()));
  EXPECT_EQ(found.missing.size(), 58u);  // every layer's, and what leads to the first
  EXPECT_EQ(
      found.wrong, beginning_with({"t1.", "t2."}, plain));  // only the last norm's part arrives
  EXPECT_GT(found.worst, 0.01);
  expect_retape_is_right(step, plain);
}

}  // namespace
}  // namespace retape::testing
