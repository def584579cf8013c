#include "gradcheck/guess.h"

#include "gradcheck/sizes.h"

#include <algorithm>
#include <cmath>

namespace retape::dist::detail {

namespace {

constexpr int kMostFactors = 3;

struct Number {
  std::string name;
  double value;
};

// Number to an exponent, for each of some numbers.
using Exponents = std::vector<int>;

std::string product(const std::vector<Number>& numbers, const Exponents& exponents, int sign) {
  std::string text;
  for (size_t i = 0; i < numbers.size(); ++i) {
    const int exponent = exponents[i] * sign;
    if (exponent > 0) {
      text += (text.empty() ? "" : " * ") + numbers[i].name + (exponent > 1 ? "^" + std::to_string(exponent) : "");
    }
  }
  return text;
}

std::string text_of(const std::vector<Number>& numbers, const Exponents& exponents) {
  const auto above = product(numbers, exponents, 1);
  const auto below = product(numbers, exponents, -1);
  if (below.empty()) {
    return above;
  }
  const bool several = below.find('*') != std::string::npos;
  return (above.empty() ? "1" : above) + " / " + (several ? "(" + below + ")" : below);
}

// All exponents whose sizes add up to `factors`.
template <typename Use>
void each(Exponents& exponents, size_t next, int factors, double value, const std::vector<Number>& numbers, Use use) {
  if (next == numbers.size()) {
    if (factors == 0) {
      use(exponents, value);
    }
    return;
  }
  for (int exponent = -factors; exponent <= factors; ++exponent) {
    exponents[next] = exponent;
    const double power = std::pow(numbers[next].value, exponent);
    each(exponents, next + 1, factors - std::abs(exponent), value * power, numbers, use);
  }
  exponents[next] = 0;
}

std::vector<Number> numbers_of(const Topology& topology) {
  std::vector<Number> numbers;
  const int ranks = all_ranks(topology);
  bool has_all = false;
  for (const auto& size : sizes_of(topology)) {
    if (size.value > 1) {
      numbers.push_back({size.name, static_cast<double>(size.value)});
    }
    has_all |= size.value == ranks;
  }
  if (!has_all) {
    numbers.push_back({"n_ranks", static_cast<double>(ranks)});
  }
  return numbers;
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

std::vector<std::string> guesses(double factor, const Topology& topology, bool roots, double within) {
  if (!std::isfinite(factor)) {
    return {};
  }
  if (std::abs(factor) <= within) {
    return {"0"};
  }
  const std::string sign = factor < 0 ? "-" : "";
  const double size = std::abs(factor);
  if (close(size, 1, within)) {
    return factor < 0 ? std::vector<std::string>{"-1"} : std::vector<std::string>{};
  }
  const auto numbers = numbers_of(topology);
  for (int factors = 1; factors <= kMostFactors; ++factors) {
    std::vector<std::string> found;
    Exponents exponents(numbers.size(), 0);
    each(exponents, 0, factors, 1.0, numbers, [&](const Exponents& chosen, double value) {
      if (close(size, value, within)) {
        found.push_back(sign + text_of(numbers, chosen));
      } else if (roots && close(size * size, value, within)) {
        found.push_back(sign + "sqrt(" + text_of(numbers, chosen) + ")");
      }
    });
    if (factors == 1 && (close(size, 2, within) || close(size, 0.5, within))) {
      found.push_back(sign + (size > 1 ? "2" : "1 / 2"));
    }
    if (!found.empty()) {
      return without_powers(std::move(found));
    }
  }
  return {};
}

}  // namespace retape::dist::detail
