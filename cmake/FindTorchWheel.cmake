# Finds the torch of the Python that builds, without importing it, and checks its version.
set(RETAPE_TORCH_VERSION 2.13)
find_package(Python REQUIRED COMPONENTS Interpreter OPTIONAL_COMPONENTS Development.Module)
if(NOT Torch_DIR)
  execute_process(
    COMMAND ${Python_EXECUTABLE} -c
      "import importlib.util as u, os; print(os.path.dirname(u.find_spec('torch').origin))"
    OUTPUT_VARIABLE torch_package OUTPUT_STRIP_TRAILING_WHITESPACE RESULT_VARIABLE failed ERROR_QUIET)
  if(failed)
    message(FATAL_ERROR "No torch in ${Python_EXECUTABLE}. Fix: pip install torch==2.13.0, then build "
      "with --no-build-isolation.")
  endif()
  set(Torch_DIR ${torch_package}/share/cmake/Torch)
endif()
find_package(Torch REQUIRED)
if(NOT Torch_VERSION MATCHES "^2\\.13\\.")
  message(FATAL_ERROR "Retape is written against internals of torch ${RETAPE_TORCH_VERSION}; found "
    "${Torch_VERSION}. Fix: pip install torch==2.13.0.")
endif()
