// each_tensor: visits the tensors inside a value: a tensor, an optional, a container, a pair or
// tuple, a plain struct of these, nested to any depth. A class, or a struct with references, it
// leaves alone. A struct with a base, a C array or more than 12 fields does not compile, and a
// class may hide tensors: both can say what is inside with a function beside them:
//
//   template <typename Visit> void visit_tensors(MyCache& cache, Visit&& visit) { visit(cache.k);
//   ... }
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <map>
#include <optional>
#include <tuple>
#include <type_traits>
#include <unordered_map>
#include <utility>
#include <vector>

namespace retape::detail {

template <typename T, typename Visit>
void each_tensor_of(T& value, Visit&& visit);

struct Anything {
  template <typename T>
  operator T() const;  // NOLINT: converts to whatever a field is
};

template <typename T, typename = void, typename... Fields>
struct FieldsFit : std::false_type {};
template <typename T, typename... Fields>
struct FieldsFit<T, std::void_t<decltype(T{std::declval<Fields>()...})>, Fields...>
    : std::true_type {};

// How many fields a plain struct has: the most it can be brace-initialised with.
template <typename T, typename... Fields>
constexpr size_t field_count() {
  if constexpr (sizeof...(Fields) < 16 && FieldsFit<T, void, Fields..., Anything>::value) {
    return field_count<T, Fields..., Anything>();
  } else {
    return sizeof...(Fields);
  }
}

template <typename T, typename Visit>
void each_field(T& value, Visit&& visit) {
  constexpr size_t count = field_count<std::remove_const_t<T>>();
  const auto each = [&](auto&... fields) { (each_tensor_of(fields, visit), ...); };
  static_assert(count <= 12, "retape: at most 12 fields: write visit_tensors for this struct");
  if constexpr (count == 1) {
    auto& [a] = value;
    each(a);
  } else if constexpr (count == 2) {
    auto& [a, b] = value;
    each(a, b);
  } else if constexpr (count == 3) {
    auto& [a, b, c] = value;
    each(a, b, c);
  } else if constexpr (count == 4) {
    auto& [a, b, c, d] = value;
    each(a, b, c, d);
  } else if constexpr (count == 5) {
    auto& [a, b, c, d, e] = value;
    each(a, b, c, d, e);
  } else if constexpr (count == 6) {
    auto& [a, b, c, d, e, f] = value;
    each(a, b, c, d, e, f);
  } else if constexpr (count == 7) {
    auto& [a, b, c, d, e, f, g] = value;
    each(a, b, c, d, e, f, g);
  } else if constexpr (count == 8) {
    auto& [a, b, c, d, e, f, g, h] = value;
    each(a, b, c, d, e, f, g, h);
  } else if constexpr (count == 9) {
    auto& [a, b, c, d, e, f, g, h, i] = value;
    each(a, b, c, d, e, f, g, h, i);
  } else if constexpr (count == 10) {
    auto& [a, b, c, d, e, f, g, h, i, j] = value;
    each(a, b, c, d, e, f, g, h, i, j);
  } else if constexpr (count == 11) {
    auto& [a, b, c, d, e, f, g, h, i, j, k] = value;
    each(a, b, c, d, e, f, g, h, i, j, k);
  } else if constexpr (count == 12) {
    auto& [a, b, c, d, e, f, g, h, i, j, k, l] = value;
    each(a, b, c, d, e, f, g, h, i, j, k, l);
  }
}

template <typename T, typename Visit, typename = void>
struct SaysItself : std::false_type {};
template <typename T, typename Visit>
struct SaysItself<
    T,
    Visit,
    std::void_t<decltype(visit_tensors(std::declval<T&>(), std::declval<Visit&>()))>>
    : std::true_type {};

template <typename T>
struct Inside {  // how to look into a T
  template <typename Visit>
  static void visit(T& value, Visit&& visit) {
    if constexpr (SaysItself<T, Visit>::value) {
      visit_tensors(value, visit);
    } else if constexpr (
        std::is_class_v<T> && std::is_aggregate_v<T> && !std::is_empty_v<T> &&
        std::is_copy_assignable_v<T>) {
      each_field(value, visit);
    }
  }
};

template <>
struct Inside<at::Tensor> {
  template <typename Visit>
  static void visit(at::Tensor& value, Visit&& visit) {
    visit(value);
  }
};

template <typename T>
struct Inside<std::optional<T>> {
  template <typename Visit>
  static void visit(std::optional<T>& value, Visit&& visit) {
    if (value.has_value()) {
      each_tensor_of(*value, visit);
    }
  }
};

template <typename Items>
struct InsideItems {
  template <typename Visit>
  static void visit(Items& items, Visit&& visit) {
    for (auto& item : items) {
      each_tensor_of(item, visit);
    }
  }
};
template <typename T, typename A>
struct Inside<std::vector<T, A>> : InsideItems<std::vector<T, A>> {};
template <typename T, size_t N>
struct Inside<std::array<T, N>> : InsideItems<std::array<T, N>> {};
template <typename A>
struct Inside<std::vector<bool, A>> {
  template <typename Visit>
  static void visit(std::vector<bool, A>&, Visit&&) {}
};

template <typename Map>
struct InsideMap {
  template <typename Visit>
  static void visit(Map& map, Visit&& visit) {
    for (auto& entry : map) {
      each_tensor_of(entry.second, visit);
    }
  }
};
template <typename K, typename T, typename C, typename A>
struct Inside<std::map<K, T, C, A>> : InsideMap<std::map<K, T, C, A>> {};
template <typename K, typename T, typename H, typename E, typename A>
struct Inside<std::unordered_map<K, T, H, E, A>> : InsideMap<std::unordered_map<K, T, H, E, A>> {};

template <typename First, typename Second>
struct Inside<std::pair<First, Second>> {
  template <typename Visit>
  static void visit(std::pair<First, Second>& value, Visit&& visit) {
    each_tensor_of(value.first, visit);
    each_tensor_of(value.second, visit);
  }
};

template <typename... Items>
struct Inside<std::tuple<Items...>> {
  template <typename Visit>
  static void visit(std::tuple<Items...>& value, Visit&& visit) {
    std::apply([&](auto&... items) { (each_tensor_of(items, visit), ...); }, value);
  }
};

template <typename T, typename Visit>
void each_tensor_of(T& value, Visit&& visit) {
  if constexpr (!std::is_const_v<T>) {
    Inside<T>::visit(value, visit);
  }
}

// The same for a visit that changes nothing: what is const is seen too.
template <typename T, typename Visit>
void each_tensor_read(const T& value, Visit&& visit) {
  each_tensor_of(const_cast<T&>(value), [&](const at::Tensor& tensor) { visit(tensor); });
}

}  // namespace retape::detail
