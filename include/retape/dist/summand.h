// Partial and Replicated: what a number is, seen from a group of ranks.
//
//   Partial<T>     the sum over the ranks of the group is the answer
//   Replicated<T>  every rank of the group has the answer
//
// The type decides what may happen to it, never a factor. A Partial goes into a sum. A Replicated
// does not: summed over n ranks it would count n times. It is contributed by one rank:
//
//   reducer.add("weight", retape::dist::Partial(weight.grad()));
//   reducer.add("norm", retape::dist::Replicated(penalty));          // does not compile
//   reducer.add("norm", retape::dist::contribute_once("norm", retape::dist::Replicated(penalty),
//   group));
//
// Both can be scaled, added to their like and subtracted from it. Adding one to the other does not
// compile.
#pragma once

#include <retape/api.h>

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>

#include <functional>
#include <string>
#include <utility>

namespace retape::dist {

class Group;

template <typename T>
class Partial {
 public:
  explicit Partial(T value) : value_(std::move(value)) {}
  const T& value() const { return value_; }

 private:
  T value_;
};

template <typename T>
class Replicated {
 public:
  explicit Replicated(T value) : value_(std::move(value)) {}
  const T& value() const { return value_; }

 private:
  T value_;
};

namespace detail {
template <typename>
inline constexpr bool kNever = false;
}  // namespace detail

template <typename T>
Partial<T> operator+(const Partial<T>& a, const Partial<T>& b) {
  return Partial<T>(a.value() + b.value());
}
template <typename T>
Replicated<T> operator+(const Replicated<T>& a, const Replicated<T>& b) {
  return Replicated<T>(a.value() + b.value());
}
template <typename T>
Partial<T> operator*(const Partial<T>& a, double factor) {
  return Partial<T>(a.value() * factor);
}
template <typename T>
Replicated<T> operator*(const Replicated<T>& a, double factor) {
  return Replicated<T>(a.value() * factor);
}
template <typename T>
Partial<T> operator*(double factor, const Partial<T>& a) {
  return a * factor;
}
template <typename T>
Replicated<T> operator*(double factor, const Replicated<T>& a) {
  return a * factor;
}
template <typename T>
Partial<T> operator/(const Partial<T>& a, double divisor) {
  return Partial<T>(a.value() / divisor);
}
template <typename T>
Replicated<T> operator/(const Replicated<T>& a, double divisor) {
  return Replicated<T>(a.value() / divisor);
}
template <typename T>
Partial<T> operator-(const Partial<T>& a, const Partial<T>& b) {
  return Partial<T>(a.value() - b.value());
}
template <typename T>
Replicated<T> operator-(const Replicated<T>& a, const Replicated<T>& b) {
  return Replicated<T>(a.value() - b.value());
}
template <typename T>
Partial<T> operator+(const Partial<T>&, const Replicated<T>&) {
  static_assert(
      detail::kNever<T>,
      "A Replicated value added to a Partial one would be counted once per rank. "
      "Fix: retape::dist::contribute_once(name, replicated, group).");
}
template <typename T>
Partial<T> operator+(const Replicated<T>& a, const Partial<T>& b) {
  return b + a;
}
template <typename T>
Partial<T> operator-(const Partial<T>& a, const Replicated<T>& b) {
  return a + b;
}
template <typename T>
Partial<T> operator-(const Replicated<T>& a, const Partial<T>& b) {
  return b + a;
}

// The value on the rank whose index in the group is `owner`, zeros on the others, which so take
// part in the same sum; they have the value's graph, through which backward gives zeros. `name` is
// what reports call it.
RETAPE_API Partial<at::Tensor> contribute_once(
    const std::string& name,
    const Replicated<at::Tensor>& value,
    const Group& group,
    int owner = 0);

// The same, of what every rank could compute and the owner alone does: others have zeros as large
// as `like`, a leaf that requires a gradient if `like` does, so that all of them can call backward.
RETAPE_API Partial<at::Tensor> contribute_once(
    const std::string& name,
    const at::Tensor& like,
    const std::function<Replicated<at::Tensor>()>& compute,
    const Group& group,
    int owner = 0);

// The same, of what the owner alone has, as a sum that ended there. Of the others' tensors only the
// size counts.
RETAPE_API Partial<at::Tensor> contribute_from(
    const std::string& name, const at::Tensor& value, const Group& group, int owner = 0);

}  // namespace retape::dist
