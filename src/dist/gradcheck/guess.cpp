#include "dist/gradcheck/guess.h"

#include "dist/gradcheck/sizes.h"

#include <algorithm>
#include <cmath>
#include <map>

namespace retape::dist::detail {

namespace {

constexpr int kMostSizes = 3;

// A name to an exponent, for each of some names.
using Exponents = std::vector<int>;
using Names = std::vector<std::string>;

std::string product(const Names& names, const Exponents& exponents, int sign) {
  std::string text;
  for (size_t i = 0; i < names.size(); ++i) {
    const int exponent = exponents[i] * sign;
    if (exponent > 0) {
      text += (text.empty() ? "" : " * ") + names[i] +
          (exponent > 1 ? "^" + std::to_string(exponent) : "");
    }
  }
  return text;
}

std::string text_of(const Names& names, const Exponents& exponents) {
  auto above = product(names, exponents, 1);
  const auto below = product(names, exponents, -1);
  if (below.empty()) {
    return above;
  }
  const bool several = below.find('*') != std::string::npos;
  return (above.empty() ? "1" : above) + " / " + (several ? "(" + below + ")" : below);
}

// All exponents whose sizes add up to `left`.
template <typename Use>
void each(Exponents& exponents, size_t next, int left, Use use) {
  if (next == exponents.size()) {
    if (left == 0) {
      use(exponents);
    }
    return;
  }
  for (int exponent = -left; exponent <= left; ++exponent) {
    exponents[next] = exponent;
    each(exponents, next + 1, left - std::abs(exponent), use);
  }
  exponents[next] = 0;
}

constexpr const char* kMicrobatches = "microbatches";

// Sizes of a topology by name; "n_ranks" where no pool has all.
std::map<std::string, double> sizes_by_name(const Topology& topology) {
  std::map<std::string, double> sizes;
  const int ranks = all_ranks(topology);
  bool has_all = false;
  for (const auto& size : sizes_of(topology)) {
    sizes[size.name] = size.value;
    has_all |= size.value == ranks;
  }
  if (!has_all) {
    sizes["n_ranks"] = ranks;
  }
  return sizes;
}

// Of sizes that are not one everywhere; in the order in which pools are named.
Names names_of(const std::vector<Factor>& factors) {
  Names names;
  const auto add = [&](const std::string& name) {
    if (std::find(names.begin(), names.end(), name) == names.end()) {
      names.push_back(name);
    }
  };
  for (const auto& factor : factors) {
    for (const auto& size : sizes_of(factor.topology)) {
      if (size.value > 1) {
        add(size.name);
      }
    }
  }
  for (const auto& factor : factors) {
    if (sizes_by_name(factor.topology).contains("n_ranks")) {
      add("n_ranks");
    }
    if (factor.microbatches > 1) {
      add(kMicrobatches);
    }
  }
  return names;
}

// A square of a size is a rarer mistake than one size for another.
std::vector<std::string> without_powers(std::vector<std::string> found) {
  const auto power = [](const std::string& text) { return text.find('^') != std::string::npos; };
  if (!std::all_of(found.begin(), found.end(), power)) {
    found.erase(std::remove_if(found.begin(), found.end(), power), found.end());
  }
  return found;
}

bool close(double a, double b, double within) {
  return std::abs(a - b) <= within * std::abs(b);
}

}  // namespace

std::vector<std::string> guesses(const std::vector<Factor>& factors, bool roots, double within) {
  const auto all = [&](auto test) {
    return std::all_of(
        factors.begin(), factors.end(), [&](const Factor& factor) { return test(factor.value); });
  };
  if (factors.empty() || !all([](double value) { return std::isfinite(value); })) {
    return {};
  }
  if (all([&](double value) { return std::abs(value) <= within; })) {
    return {"0"};
  }
  const bool negative = factors.front().value < 0;
  if (!all([&](double value) { return value != 0 && (value < 0) == negative; })) {
    return {};
  }
  const std::string sign = negative ? "-" : "";
  const auto all_are = [&](double size) {
    return all([&](double value) { return close(std::abs(value), size, within); });
  };
  if (all_are(1)) {
    return negative ? Names{"-1"} : Names{};
  }
  const auto names = names_of(factors);
  std::vector<std::vector<double>> values;  // of names, by factor
  for (const auto& factor : factors) {
    auto sizes = sizes_by_name(factor.topology);
    sizes[kMicrobatches] = factor.microbatches;
    auto& of = values.emplace_back();
    for (const auto& name : names) {
      of.push_back(
          sizes.contains(name)    ? sizes[name]
              : name == "n_ranks" ? all_ranks(factor.topology)
                                  : 1.0);
    }
  }
  const auto fits = [&](const Exponents& exponents, int power) {
    for (size_t f = 0; f < factors.size(); ++f) {
      double made = 1;
      for (size_t i = 0; i < names.size(); ++i) {
        made *= std::pow(values[f][i], exponents[i]);
      }
      if (!close(std::pow(std::abs(factors[f].value), power), made, within)) {
        return false;
      }
    }
    return true;
  };
  for (int sizes = 1; sizes <= kMostSizes; ++sizes) {
    Names found;
    Exponents exponents(names.size(), 0);
    each(exponents, 0, sizes, [&](const Exponents& chosen) {
      if (fits(chosen, 1)) {
        found.push_back(sign + text_of(names, chosen));
      } else if (roots && fits(chosen, 2)) {
        found.push_back(sign + "sqrt(" + text_of(names, chosen) + ")");
      }
    });
    if (sizes == 1 && (all_are(2) || all_are(0.5))) {
      found.push_back(sign + (all_are(2) ? "2" : "1 / 2"));
    }
    if (!found.empty()) {
      return without_powers(std::move(found));
    }
  }
  return {};
}

}  // namespace retape::dist::detail
