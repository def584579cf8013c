// Saved-tensor hooks from C++: installed once per process, in effect while a scope is open.
#pragma once

namespace retape::detail {

void install_engine();

}  // namespace retape::detail
