#!/usr/bin/env bash
# Builds library and C++ tests with one sanitizer and runs them. The torch wheel itself is not
# instrumented; the options say what that needs.
set -euo pipefail

kind=$1
dir=build/sanitize-$kind
cmake -S . -B "$dir" -DRETAPE_SANITIZE="$kind" -DRETAPE_BUILD_TESTS=ON -DRETAPE_BUILD_PYTHON=OFF \
  -DCMAKE_BUILD_TYPE=RelWithDebInfo -DPython_EXECUTABLE="$PWD/$PY" >"$dir.log" 2>&1 || { cat "$dir.log"; exit 1; }
cmake --build "$dir"
export OMP_NUM_THREADS=1  # tests are small; spinning threads would only wait for each other
export ASAN_OPTIONS=detect_leaks=1:detect_odr_violation=0
export LSAN_OPTIONS=suppressions=$PWD/tools/lsan.supp
export UBSAN_OPTIONS=print_stacktrace=1:halt_on_error=1
# Races inside libtorch (its generator mutex) are not ours to report.
export TSAN_OPTIONS=ignore_noninstrumented_modules=1:halt_on_error=0:exitcode=66
ctest --test-dir "$dir" --output-on-failure
