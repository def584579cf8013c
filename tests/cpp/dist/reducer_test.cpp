#include "ranks.h"

#include <limits>

namespace retape::dist {
namespace {

using testing::error_of;
using testing::expect_ranks;
using testing::same_bits;

TEST(SumReducer, SumsTensorsOfAllKindsInFewCalls) {
  expect_ranks(3, [](World& world) {
    const double n = world.rank() + 1;
    std::vector<at::Tensor> tensors{
        torch::full({2, 3}, n),
        torch::full({4}, n, torch::kDouble),
        torch::full({5, 1}, n).t(),
        torch::full({}, n, torch::kBFloat16),
        torch::full({0, 2}, n),
        torch::full({3}, static_cast<int64_t>(n), torch::kLong)};
    SumReducer reducer(world.all());
    for (size_t i = 0; i < tensors.size(); ++i) {
      reducer.add("tensor " + std::to_string(i), Partial(tensors[i]));
    }
    reducer.reduce();
    for (const auto& tensor : tensors) {
      RANK_EXPECT(same_bits(tensor, torch::full_like(tensor, 6)));
    }
  });
}

TEST(SumReducer, BucketsAreWrittenWhateverTheirSize) {
  expect_ranks(2, [](World& world) {
    for (const int64_t bytes : {1, 100, 1000, 1 << 20}) {
      ReducerOptions options;
      options.bucket_bytes = bytes;
      SumReducer reducer(world.all(), options);
      std::vector<at::Tensor> tensors;
      for (int i = 0; i < 30; ++i) {
        tensors.push_back(torch::full({i + 1}, i + world.rank() * 100.0));
        reducer.add(std::to_string(i), Partial(tensors.back()));
      }
      reducer.reduce_async();
      reducer.wait();
      for (int i = 0; i < 30; ++i) {
        RANK_EXPECT(same_bits(tensors[i], torch::full({i + 1}, 2.0 * i + 100)));
      }
    }
  });
}

TEST(SumReducer, ReplicasAreTheSameBits) {
  expect_ranks(4, [](World& world) {
    torch::manual_seed(world.rank());
    const auto a = torch::randn({1001}), b = torch::randn({77, 3});
    SumReducer reducer(world.all());
    reducer.add("a", Partial(a));
    reducer.add("b", Partial(b));
    reducer.reduce();
    for (const auto& tensor : {a, b}) {
      for (const auto& other : world.all().gather("replica", tensor)) {
        RANK_EXPECT(same_bits(tensor, other));
      }
    }
  });
}

TEST(SumReducer, ANarrowerWire) {
  expect_ranks(2, [](World& world) {
    ReducerOptions options;
    options.wire = torch::kBFloat16;
    const auto tensor = torch::full({3}, 1.0009765625);  // more bits than bfloat16 has
    SumReducer reducer(world.all(), options);
    reducer.add("tensor", Partial(tensor));
    reducer.reduce();
    RANK_EXPECT(same_bits(tensor, torch::full({3}, 2.0)));
  });
}

TEST(SumReducer, WhatAWireCannotHoldTravelsAsItIs) {
  expect_ranks(2, [](World& world) {
    ReducerOptions options;
    options.wire = torch::kBFloat16;
    const auto integers = torch::full({2}, int64_t{1001}, torch::kLong);
    const auto complex = torch::complex(torch::full({2}, 1.0), torch::full({2}, 2.0));
    SumReducer reducer(world.all(), options);
    reducer.add("integers", Partial(integers));
    reducer.add("complex", Partial(complex));
    reducer.reduce();
    RANK_EXPECT(same_bits(integers, torch::full({2}, int64_t{2002}, torch::kLong)));
    RANK_EXPECT(complex.equal(torch::complex(torch::full({2}, 2.0), torch::full({2}, 4.0))));
  });
}

// A later bucket differs: the first one has arrived, and is not written.
TEST(SumReducer, AfterAnErrorInOneBucketNothingHasChanged) {
  expect_ranks(2, [](World& world) {
    const auto with = torch::ones({3}, torch::requires_grad()),
               without = torch::ones({3}, torch::requires_grad());
    with.mutable_grad() = torch::ones({3});
    if (world.rank() == 0) {
      without.mutable_grad() = torch::ones({3});
    }
    const auto last = torch::ones({3});
    ReducerOptions options;
    options.bucket_bytes = 1;
    SumReducer reducer(world.all(), options);
    reducer.add(world.rank() == 0 ? "last" : "least", Partial(last));
    reducer.add_gradients({{"with", with}, {"without", without}});
    // Those of add_gradients come after what was added: a bucket of its own first.
    RANK_EXPECT_TEXT(error_of([&] { reducer.reduce(); }), "\"last\"", "\"least\"");
    SumReducer other(world.group("other", {0, 1}), options);
    const auto first = torch::ones({3});
    other.add("first", Partial(first));
    other.add(world.rank() == 0 ? "last" : "least", Partial(last));
    RANK_EXPECT_TEXT(error_of([&] { other.reduce(); }), "\"last\"", "\"least\"");
    for (const auto& tensor : {first, last, with.grad()}) {
      RANK_EXPECT(same_bits(tensor, torch::ones({3})));
    }
    RANK_EXPECT(without.grad().defined() == (world.rank() == 0));
  });
}

TEST(SumReducer, GradientsThatSomeRanksDoNotHave) {
  expect_ranks(2, [](World& world) {
    const auto everywhere = torch::ones({2}, torch::requires_grad());
    const auto here = torch::ones({3}, torch::requires_grad());
    const auto nowhere = torch::ones({4}, torch::requires_grad());
    auto loss = everywhere.sum() * 2;
    if (world.rank() == 1) {
      loss = loss + here.sum() * 3;
    }
    loss.backward();
    SumReducer reducer(world.all());
    reducer.add_gradients({{"everywhere", everywhere}, {"here", here}, {"nowhere", nowhere}});
    reducer.reduce();
    RANK_EXPECT(same_bits(everywhere.grad(), torch::full({2}, 4.0)));
    RANK_EXPECT(same_bits(here.grad(), torch::full({3}, 3.0)));
    RANK_EXPECT(!nowhere.grad().defined());
  });
}

TEST(SumReducer, WhatIsNotFiniteIsNamedOnEveryRank) {
  expect_ranks(3, [](World& world) {
    const auto good = torch::ones({2});
    const auto bad = torch::ones({2, 3});
    if (world.rank() == 1) {
      bad[1][2] = std::numeric_limits<float>::quiet_NaN();
    }
    ReducerOptions options;
    options.check_finite = true;
    SumReducer reducer(world.all(), options);
    reducer.add("good", Partial(good));
    reducer.add("layer.weight", Partial(bad));
    const auto text = error_of([&] { reducer.reduce(); });
    RANK_EXPECT_TEXT(
        text,
        "rank 1:",
        "\"layer.weight\" has 1 values that are not finite, the first at [1,2]: nan");
    RANK_EXPECT(same_bits(good, torch::ones({2})));
  });
}

TEST(SumReducer, WhatIsNotFiniteOnTheWireIsNamedToo) {
  expect_ranks(2, [](World& world) {
    const auto large = torch::full({3}, world.rank() == 1 ? 1e6 : 1);
    ReducerOptions options;
    options.check_finite = true;
    options.wire = torch::kHalf;
    SumReducer reducer(world.all(), options);
    reducer.add("weight", Partial(large));
    RANK_EXPECT_TEXT(
        error_of([&] { reducer.reduce(); }),
        "rank 1:",
        "\"weight\" has 3 values that are not finite, the first at [0]: 1e+06 as Half");
  });
}

TEST(SumReducer, RefusesWhatCannotBeSummed) {
  SumReducer reducer(Group::alone("alone"));
  EXPECT_THROW(reducer.add("undefined", Partial(at::Tensor())), UsageError);
  EXPECT_THROW(reducer.add("sparse", Partial(torch::eye(2).to_sparse())), UsageError);
  EXPECT_THROW(reducer.add("expanded", Partial(torch::ones({1}).expand({3}))), UsageError);
  EXPECT_THROW(Group::alone("alone").sum("expanded", torch::ones({1}).expand({3})), UsageError);
  const auto parameter = torch::ones({3}, torch::requires_grad());
  parameter.mutable_grad() = torch::ones({1}).expand(
      {3});  // as torch::autograd::grad gives that of a sum
  EXPECT_THROW(
      SumReducer(Group::alone("alone")).add_gradients({{"gradient", parameter}}), UsageError);
  const auto in_inference = [] {
    const c10::InferenceMode mode;
    return torch::ones({3});
  }();
  EXPECT_THROW(reducer.add("of inference", Partial(in_inference)), UsageError);
  reducer.add("twice", Partial(torch::ones({1})));
  EXPECT_THROW(reducer.add("twice", Partial(torch::ones({1}))), UsageError);
  ReducerOptions options;
  options.wire = torch::kInt;
  EXPECT_THROW(SumReducer(Group::alone("alone"), options), UsageError);
}

TEST(SumReducer, RefusesTheSameMemoryUnderTwoNames) {
  SumReducer reducer(Group::alone("alone"));
  const auto refuses = [&](const at::Tensor& tensor) {
    EXPECT_THAT(
        [&] { reducer.add("head", Partial(tensor)); },
        ::testing::ThrowsMessage<UsageError>(
            ::testing::HasSubstr("\"head\" is the memory of \"embed\": it would be summed twice")));
    reducer = SumReducer(Group::alone("alone"));
  };
  const auto tensor = torch::ones({4, 3});
  for (const auto& same :
       {tensor,
        tensor.detach(),
        tensor.t(),
        tensor.view({12}),
        tensor[2],
        tensor.narrow(0, 1, 3)}) {
    reducer.add("embed", Partial(tensor));
    refuses(same);
  }
  reducer.add("embed", Partial(tensor[2]));
  refuses(tensor);
  const auto strided = tensor.narrow(1, 0, 2);
  reducer.add("embed", Partial(strided));
  refuses(strided);
  // Parts side by side are not the same, whether they can be told apart cheaply or not.
  reducer.add("rows 0 and 1", Partial(tensor.narrow(0, 0, 2)));
  reducer.add("rows 2 and 3", Partial(tensor.narrow(0, 2, 2)));
  reducer.reduce();
  reducer.add("column 0", Partial(tensor.narrow(1, 0, 1)));
  reducer.add("column 1", Partial(tensor.narrow(1, 1, 1)));
  reducer.reduce();
  reducer.add("again", Partial(tensor));
  reducer.reduce();
  EXPECT_TRUE(same_bits(tensor, torch::ones({4, 3})));
}

// On every rank: the gradients may be there on some of them only.
TEST(SumReducer, RefusesAParameterUnderTwoNamesBeforeItHasAGradient) {
  SumReducer reducer(Group::alone("alone"));
  const auto tied = torch::ones({2}, torch::requires_grad());
  reducer.add_gradients({{"embed", tied}});
  EXPECT_THAT(
      [&] { reducer.add_gradients({{"head", tied}}); },
      ::testing::ThrowsMessage<UsageError>(
          ::testing::HasSubstr("\"head\" is the parameter \"embed\"")));
}

TEST(Summand, LikeIsAddedToLike) {
  const auto one = torch::ones({2});
  EXPECT_TRUE(same_bits((Partial(one) + Partial(one) * 2).value(), one * 3));
  EXPECT_TRUE(same_bits((Replicated(one) * 2 + Replicated(one)).value(), one * 3));
  EXPECT_TRUE(same_bits((3 * Partial(one) - Partial(one)).value(), one * 2));
  EXPECT_TRUE(same_bits((Replicated(one) / 2 - 2 * Replicated(one)).value(), one * -1.5));
}

TEST(ContributeOnce, CountsOnceWhoeverOwnsIt) {
  expect_ranks(3, [](World& world) {
    for (int owner = 0; owner < 3; ++owner) {
      const auto part = contribute_once(
          "penalty", Replicated(torch::full({2}, 5.0)), world.all(), owner);
      RANK_EXPECT_EQ(part.value()[0].item<double>(), world.rank() == owner ? 5.0 : 0.0);
      SumReducer reducer(world.all());
      reducer.add("penalty", part);
      reducer.reduce();
      RANK_EXPECT_EQ(part.value()[1].item<double>(), 5.0);
    }
  });
}

TEST(ContributeOnce, BackwardIsTheSameCallOnAllRanks) {
  expect_ranks(2, [](World& world) {
    const auto w = torch::full({2}, 3.0, torch::requires_grad());
    contribute_once("penalty", Replicated(w.square().sum()), world.all(), 1).value().backward();
    RANK_EXPECT(same_bits(w.grad(), torch::full({2}, world.rank() == 1 ? 6.0 : 0.0)));
    const auto bad = torch::full({2}, std::numeric_limits<double>::infinity());
    RANK_EXPECT_EQ(
        contribute_once("bad", Replicated(bad), world.all(), 1).value()[0].item<double>() == 0,
        world.rank() == 0);
  });
}

}  // namespace
}  // namespace retape::dist
