// What is known of an operator before it runs: by its schema, tags, registrations and name. Seen
// from outside: a policy's function is asked about each value that an op makes and that could be
// replayed.
#include "support.h"

#include <retape/replayable.h>

#include <ATen/FunctionalTensorWrapper.h>
#include <torch/library.h>

namespace retape::testing {
namespace {

Tensor doubled(const Tensor& x) {
  return x * 2;
}

std::tuple<Tensor, int64_t> counted(const Tensor& x) {
  return {x * 2, x.numel()};
}

std::tuple<Tensor, Tensor> twins(const Tensor& x) {
  const auto y = x * 2;
  return {y, at::alias(y.t())};
}

std::vector<Tensor> each_doubled(at::TensorList xs) {
  std::vector<Tensor> ys;
  for (const auto& x : xs) {
    ys.push_back(x * 2);
  }
  return ys;
}

// As matmul does, which folds its argument or not by it.
Tensor looks_at_grad(const Tensor& x) {
  return x * (x.requires_grad() ? 3 : 2);
}

using Groups = c10::List<c10::List<Tensor>>;

Tensor sum_of_all(const Tensor& first, const Groups& groups) {
  Tensor sum = first;
  for (const c10::List<Tensor> group : groups) {
    for (const Tensor& x : group) {
      sum = sum + x;
    }
  }
  return sum;
}

// With an autograd kernel of its own.
struct Odd : torch::autograd::Function<Odd> {
  static Tensor forward(torch::autograd::AutogradContext*, const Tensor& x) { return x.exp(); }
  static torch::autograd::tensor_list backward(
      torch::autograd::AutogradContext*, torch::autograd::tensor_list grads) {
    return {grads[0] * 3};
  }
};

TORCH_LIBRARY(retape_op_info_test, m) {
  const auto good = at::Tag::pt2_compliant_tag;
  m.def("untagged(Tensor x) -> Tensor");
  m.def("tagged(Tensor x) -> Tensor", {good});
  m.def("draws(Tensor x) -> Tensor", {good, at::Tag::nondeterministic_seeded});
  m.def("shapes(Tensor x) -> Tensor", {good, at::Tag::dynamic_output_shape});
  m.def("depends(Tensor x) -> Tensor", {good, at::Tag::data_dependent_output});
  m.def("aliases(Tensor x) -> Tensor", {good, at::Tag::maybe_aliasing_or_mutating});
  m.def("looks_at_grad(Tensor x) -> Tensor", {good});
  m.def("counted(Tensor x) -> (Tensor, int)", {good});
  m.def("twins(Tensor x) -> (Tensor, Tensor)", {good});
  m.def("each(Tensor[] xs) -> Tensor[]", {good});
  m.def("sum_of_all(Tensor first, Tensor[][] groups) -> Tensor", {good});
  m.def("own_gradient(Tensor x) -> Tensor", {good});
}

TORCH_LIBRARY_IMPL(retape_op_info_test, CPU, m) {
  for (const char* name :
       {"untagged", "tagged", "draws", "shapes", "depends", "aliases", "own_gradient"}) {
    m.impl(name, &doubled);
  }
  m.impl("looks_at_grad", &looks_at_grad);
  m.impl("counted", &counted);
  m.impl("twins", &twins);
  m.impl("each", &each_doubled);
  m.impl("sum_of_all", &sum_of_all);
}

TORCH_LIBRARY_IMPL(retape_op_info_test, Autograd, m) {
  m.impl("own_gradient", [](const Tensor& x) { return Odd::apply(x); });
}

// Of their authors.
const bool opted_in = [] {
  for (const char* name :
       {"tagged",
        "shapes",
        "depends",
        "aliases",
        "looks_at_grad",
        "counted",
        "twins",
        "each",
        "sum_of_all"}) {
    replayable(std::string("retape_op_info_test::") + name);
  }
  return true;
}();

template <typename Signature, typename... Args>
auto call(const char* name, const Args&... args) {
  return c10::Dispatcher::singleton()
      .findSchemaOrThrow((std::string("retape_op_info_test::") + name).c_str(), "")
      .typed<Signature>()
      .call(args...);
}

Tensor call_unary(const char* name, const Tensor& x) {
  return call<Tensor(const Tensor&)>(name, x);
}

// Values that could be replayed, as "op cheap" or "op".
std::vector<std::string> asked(const std::function<void()>& forward) {
  std::vector<std::string> values;
  Recompute scope(Policy::function([&](const ValueInfo& info) {
    values.push_back(info.op + (info.cheap ? " cheap" : ""));
    return Decision::Drop;
  }));
  forward();
  return values;
}

using Values = std::vector<std::string>;

TEST(OpInfo, CheapIsWhatCostsMemoryTrafficOnly) {
  const auto x = leaf({4, 4}).detach();
  EXPECT_EQ(asked([&] { x.sin(); }), Values{"aten::sin cheap"});
  EXPECT_EQ(asked([&] { x.sum(); }), Values{"aten::sum cheap"});
  EXPECT_EQ(asked([&] { x.clone(); }), Values{"aten::clone cheap"});
  EXPECT_EQ(asked([&] { x.mm(x); }), Values{"aten::mm"});
  EXPECT_EQ(asked([&] { torch::softmax(x, 0); }), Values{"aten::_softmax cheap"});
}

TEST(OpInfo, ACompositeOpIsItsParts) {
  const auto x = leaf({4, 4}).detach();
  EXPECT_EQ(asked([&] { torch::square(x); }), Values{"aten::pow cheap"});
  EXPECT_EQ(asked([&] { torch::linear(x, x); }), (Values{"aten::mm"}));
}

TEST(OpInfo, ViewsAndQuestionsMakeNoValue) {
  const auto x = leaf({4, 4}).detach();
  EXPECT_EQ(asked([&] { x.t().select(0, 1).view({2, 2}).detach(); }), Values{});
  EXPECT_EQ(asked([&] { x.select(0, 1)[0].item(); }), Values{});
  EXPECT_EQ(asked([&] { torch::equal(x, x); }), Values{});
}

TEST(OpInfo, MemoryThatNobodyWroteHasNoRecipe) {
  const auto x = leaf({4, 4}).detach();
  EXPECT_EQ(asked([&] { torch::empty({4}); }), Values{});
  EXPECT_EQ(asked([&] { torch::zeros({4}); }), Values{});
  EXPECT_EQ(asked([&] { torch::empty_like(x); }), Values{});
}

TEST(OpInfo, ShapesThatDependOnDataAreNotReplayed) {
  const auto x = leaf({4, 4}).detach();
  const auto mask = x > 0;
  EXPECT_EQ(asked([&] { x.masked_select(mask); }), Values{});
  EXPECT_EQ(asked([&] { mask.nonzero(); }), Values{});
}

TEST(OpInfo, AnInPlaceOpMakesAVersionOfWhatAnOpMade) {
  const auto x = leaf({4, 4}).detach();
  EXPECT_EQ(asked([&] { (x * 2).mul_(3); }), (Values{"aten::mul cheap", "aten::mul_ cheap"}));
  EXPECT_EQ(
      asked([&] { x.clone().select(0, 1).fill_(3); }),
      (Values{"aten::clone cheap", "aten::fill_ cheap"}));
}

TEST(OpInfo, AnOpOfAnotherLibraryIsReplayedIfItsUserSaysThatItMayBe) {
  const auto x = leaf({4, 4}).detach();
  ASSERT_TRUE(opted_in);
  EXPECT_EQ(asked([&] { call_unary("tagged", x); }), Values{"retape_op_info_test::tagged"});
  for (const char* name : {"untagged", "draws", "shapes", "depends", "aliases"}) {
    EXPECT_EQ(asked([&] { call_unary(name, x); }), Values{}) << name;
  }
}

TEST(OpInfo, AnOpWithAnAutogradKernelOfItsOwnIsWhatThatKernelCalls) {
  const auto x = leaf({4, 4});
  EXPECT_EQ(asked([&] { call_unary("own_gradient", x); }), Values{"aten::exp cheap"});
}

TEST(OpInfo, AnOpThatLooksWhetherItsArgumentNeedsAGradientSeesTheSameAgain) {
  for (const bool needs : {false, true}) {
    expect_same(
        [&](const auto& leaves) {
          const auto h = needs ? leaves[0] * 2 : leaves[0].detach() * 2;
          Tensor seen;
          {
            torch::NoGradGuard guard;
            seen = call_unary("looks_at_grad", h);
          }
          return (seen * leaves[0]).sum();
        },
        {leaf({4, 4})});
  }
}

TEST(OpInfo, ResultsThatAreNoTensorsAreNotInTheWay) {
  const auto x = leaf({4, 4});
  EXPECT_EQ(
      (asked([&] { call<std::tuple<Tensor, int64_t>(const Tensor&)>("counted", x.detach()); })),
      Values{"retape_op_info_test::counted"});
  expect_same(
      [](const auto& leaves) {
        const auto h = leaves[0].detach() * 3;
        return (std::get<0>(call<std::tuple<Tensor, int64_t>(const Tensor&)>("counted", h)) *
                leaves[0])
            .sum();
      },
      {x});
}

TEST(OpInfo, TwoResultsOnOneStorageAreOneValue) {
  const auto x = leaf({4, 4});
  const auto both = [](const Tensor& t) {
    return call<std::tuple<Tensor, Tensor>(const Tensor&)>("twins", t);
  };
  EXPECT_EQ(asked([&] { both(x.detach()); }), Values{"retape_op_info_test::twins"});
  expect_same(
      [&](const auto& leaves) {
        const auto [y, z] = both(leaves[0].detach() * 3);
        return (y * leaves[0]).sum() + (z * leaves[0]).sin().sum();
      },
      {x});
}

TEST(OpInfo, ListsOfTensorsAreArgumentsAndResults) {
  expect_same(
      [](const auto& leaves) {
        const std::vector<Tensor> xs{leaves[0].detach() * 3, leaves[0].detach().sin()};
        const auto ys = call<std::vector<Tensor>(at::TensorList)>("each", at::TensorList(xs));
        return (ys[0] * leaves[0]).sin().sum() + (ys[1] * leaves[0]).cos().sum();
      },
      {leaf({4, 4})});
}

TEST(OpInfo, ListsOfTensorsAreReplayedAndListsOfListsAreNot) {
  const auto x = leaf({4, 4}).detach();
  EXPECT_EQ(asked([&] { torch::cat({x, x}); }), Values{"aten::cat cheap"});
  EXPECT_EQ(asked([&] { x.sum(at::IntArrayRef{0, 1}); }), Values{"aten::sum cheap"});
  const c10::List<std::optional<Tensor>> rows({torch::tensor({2, 0})});
  EXPECT_EQ(asked([&] { torch::index_put(x, rows, x[0]); }), Values{"aten::index_put"});
  const Groups groups({c10::List<Tensor>({x})});
  EXPECT_EQ(
      (asked([&] { call<Tensor(const Tensor&, const Groups&)>("sum_of_all", x, groups); })),
      Values{});
}

TEST(OpInfo, WhatIntegersPickIsReplayedAndWhatAMaskPicksIsKept) {
  const auto x = leaf({4, 4}).detach();
  const auto rows = torch::tensor({2, 0, 2, 1});
  const auto mask = torch::tensor({true, false, true, true});
  using at::indexing::Slice;
  EXPECT_EQ(asked([&] { x.index({rows}); }), Values{"aten::index cheap"});
  EXPECT_EQ(asked([&] { x.index({Slice(), rows}); }), Values{"aten::index cheap"});
  EXPECT_EQ(asked([&] { x.index({mask}); }), Values{});
  const auto bytes = mask.to(at::kByte);
  EXPECT_EQ(asked([&] { x.index({bytes}); }), Values{});
  EXPECT_EQ(asked([&] { x.index({mask, rows.slice(0, 1)}); }), Values{});
  for (const auto& picked : {rows, mask}) {
    expect_same(
        [&](const auto& leaves) {
          const auto h = leaves[0].detach() * 3;
          return (h.index({picked}).sin() * leaves[0].index({picked}).cos()).sum();
        },
        {leaf({4, 4})});
  }
}

TEST(OpInfo, APickSmallerThanItsSourceIsKeptUnlessTheSourceIsThereAnyway) {
  const auto x = leaf({4, 4}).detach();
  const auto few = torch::tensor({2, 0}), many = few.repeat(2);
  EXPECT_EQ(asked([&] { x.index({few}); }), Values{"aten::index cheap"});  // x was given
  EXPECT_EQ(asked([&] { (x * 2).index({few}); }), Values{"aten::mul cheap"});
  EXPECT_EQ(
      asked([&] { (x * 2).index({many}); }), (Values{"aten::mul cheap", "aten::index cheap"}));
}

TEST(OpInfo, IntegersThatChooseWhereDataGoesAreKept) {
  const auto x = leaf({4, 4}).detach();
  EXPECT_EQ(asked([&] { torch::topk(x, 2); }), Values{"aten::topk"});  // the values
  EXPECT_EQ(asked([&] { x.argmax(); }), Values{});
  EXPECT_EQ(asked([&] { x > 0; }), Values{"aten::gt cheap"});
}

TEST(OpInfo, SumsInAnyOrderAreReplayedWhereTheOrderIsFixed) {
  const auto x = leaf({4, 4}).detach();
  EXPECT_EQ(asked([&] { x.cumsum(0); }), Values{"aten::cumsum cheap"});
}

TEST(OpInfo, AWriteToWhatWasGivenMakesNoValue) {
  auto given = leaf({4, 4}).detach();
  EXPECT_EQ(asked([&] { given.mul_(3); }), Values{});
}

TEST(OpInfo, AnOpMayReadWhatItOverwritesIfAnOpMadeIt) {
  const auto x = leaf({4, 4}).detach();
  const auto squared = [](Tensor y) { torch::mul_out(y, y, y); };
  EXPECT_EQ(asked([&] { squared(x * 2); }), (Values{"aten::mul cheap", "aten::mul cheap"}));
  EXPECT_EQ(asked([&] { squared(torch::zeros({4, 4})); }), Values{});
  EXPECT_EQ(
      asked([&] { torch::zeros({4, 4}).copy_(torch::zeros({4, 4})); }),
      Values{"aten::copy_ cheap"});
  EXPECT_EQ(
      asked([&] {
        auto y = torch::zeros({4, 4});
        y.copy_(y);
      }),
      Values{});
}

// A registration that ends with it.
struct Registered {
  Registered(const char* name, const std::vector<at::Tag>& tags)
      : library(torch::Library::FRAGMENT, "retape_op_info_test", std::nullopt, __FILE__, __LINE__) {
    library.def((std::string(name) + "(Tensor x) -> Tensor").c_str(), tags);
    library.impl(name, torch::dispatch(c10::DispatchKey::CPU, &doubled));
  }
  torch::Library library;
};

TEST(OpInfo, AnOpThatIsRegisteredAnewIsLookedAtAnew) {
  const auto x = leaf({4, 4}).detach();
  const auto asked_about = [&] { return asked([&] { call_unary("renewed", x); }); };
  std::optional<Registered> op, another;
  replayable("retape_op_info_test::renewed");
  op.emplace("renewed", std::vector<at::Tag>{});
  EXPECT_EQ(asked_about(), Values{"retape_op_info_test::renewed"});
  op.reset();
  another.emplace("another", std::vector<at::Tag>{});  // where the first was
  op.emplace("renewed", std::vector<at::Tag>{at::Tag::dynamic_output_shape});
  EXPECT_EQ(asked_about(), Values{});
  EXPECT_EQ(asked([&] { call_unary("another", x); }), Values{});
}

TEST(OpInfo, AnOpThatIsRegisteredAnewInTheSamePlaceIsLookedAtAnew) {
  const auto x = leaf({4, 4}).detach();
  const auto asked_about = [&] { return asked([&] { call_unary("replaced", x); }); };
  std::optional<Registered> op;
  replayable("retape_op_info_test::replaced");
  op.emplace("replaced", std::vector<at::Tag>{});
  EXPECT_EQ(asked_about(), Values{"retape_op_info_test::replaced"});
  op.reset();
  op.emplace("replaced", std::vector<at::Tag>{at::Tag::dynamic_output_shape});
  EXPECT_EQ(asked_about(), Values{});
}

TEST(OpInfo, InsideAWrapperTheOpsOnPlainTensorsAreRecorded) {
  const auto x = leaf({4, 4}).detach();
  const auto wrapped = at::functionalization::impl::to_functional_tensor(x);
  EXPECT_EQ(asked([&] { wrapped.sin(); }), Values{"aten::sin cheap"});
}

TEST(OpInfo, MetaTensorsAreLeftAlone) {
  const auto meta = torch::empty({4}, at::kMeta);
  EXPECT_EQ(asked([&] { (meta * 2).sin(); }), Values{});
  EXPECT_EQ(asked([&] { torch::rand({4}, at::kMeta); }), Values{});
  EXPECT_EQ(asked([&] { torch::rand_like(meta); }), Values{});
}

}  // namespace
}  // namespace retape::testing
