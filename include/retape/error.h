// What can go wrong, and what the caller may assume afterwards.
//
// Every text reads `[function] what happened: expected ... got ...`, says where, and ends with one
// fix. After any of these the process state is clean: no scope is left open that was not open
// before, running statistics and generators are where forward left them, and a graph that was not
// freed can be used again.
#pragma once

#include <retape/api.h>

#include <stdexcept>
#include <string>

namespace retape {

class RETAPE_API Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
  ~Error() override;
};

// The call itself was wrong: an unknown policy or op name, a scope closed out of order or on
// another thread. Nothing has been changed.
class RETAPE_API UsageError : public Error {
 public:
  using Error::Error;
  ~UsageError() override;
};

// A value could not be brought back as forward had it: what it is replayed from was changed
// behind the tape's back. No gradient was produced from it.
class RETAPE_API ReplayMismatch : public Error {
 public:
  using Error::Error;
  ~ReplayMismatch() override;
};

namespace detail {

// For language bindings. Errors in backward are thrown inside autograd's engine, which knows
// nothing of these classes; a translator may throw, in their place, what its language's engine
// passes on.
using ErrorTranslator = void (*)(const Error&);
RETAPE_API void set_error_translator(ErrorTranslator translator);

}  // namespace detail

}  // namespace retape
