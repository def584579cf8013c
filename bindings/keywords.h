// Keyword arguments of a constructor, each for a member that has its default already.
//
//   Keywords("Transformer", given).to("width", config.width).to("heads", config.heads).done();
#pragma once

#include <torch/csrc/utils/pybind.h>

#include <string>
#include <utility>

namespace retape::python {

class Keywords {
 public:
  Keywords(std::string function, const pybind11::kwargs& given)
      : function_(std::move(function)),
        left_(given.attr("copy")()) {}

  template <typename Member>
  Keywords& to(const char* name, Member& member) {
    known_ += (known_.empty() ? "" : ", ") + std::string(name);
    if (left_.contains(name)) {
      const pybind11::object value = left_.attr("pop")(name);
      try {
        member = value.cast<Member>();
      } catch (const pybind11::cast_error&) {
        const auto text = pybind11::repr(value).cast<std::string>();
        throw pybind11::type_error("[" + function_ + "] " + name + " cannot be " + text + ".");
      }
    }
    return *this;
  }

  // TypeError where one is left that was not for any member.
  void done() const {
    for (const auto& [name, value] : left_) {
      throw pybind11::type_error(
          "[" + function_ + "] no such size or switch: " + name.cast<std::string>() +
          ". There is: " + known_ + ".");
    }
  }

 private:
  std::string function_;
  pybind11::dict left_;
  std::string known_;
};

}  // namespace retape::python
