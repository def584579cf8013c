#include "tape/shape_text.h"

#include <c10/core/ScalarType.h>

#include <sstream>

namespace retape::detail {

std::string shape_text(const at::Tensor& tensor) {
  if (!tensor.defined()) {
    return "none";
  }
  std::ostringstream text;
  text << c10::getDtypeNames(tensor.scalar_type()).first;
  if (tensor.is_nested()) {
    text << " nested";
    return text.str();
  }
  text << " " << tensor.sizes();
  if (tensor.layout() != c10::kStrided) {
    text << " " << tensor.layout();
  }
  if (!tensor.is_cpu()) {
    text << " on " << tensor.device();
  }
  return text.str();
}

}  // namespace retape::detail
