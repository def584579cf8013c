# pybind11 as bundled in the torch wheel, so that tensors and exceptions are torch's own.
find_package(Python REQUIRED COMPONENTS Interpreter Development.Module)
find_library(TORCH_PYTHON_LIBRARY torch_python PATHS ${TORCH_INSTALL_PREFIX}/lib REQUIRED)

# A module and the library of ours that it binds.
function(retape_add_module name library)
  Python_add_library(${name} MODULE ${ARGN})
  target_link_libraries(${name} PRIVATE ${library} ${TORCH_PYTHON_LIBRARY})
  target_compile_options(${name} PRIVATE -Wall -Wextra -Wno-unused-parameter)
  set_target_properties(${name} PROPERTIES
    INSTALL_RPATH "$ORIGIN/lib;$ORIGIN/../torch/lib${editable_rpath}"
    DEFINE_SYMBOL "")  # a macro of its own would forbid precompiled headers of another's
  install(TARGETS ${name} LIBRARY DESTINATION . COMPONENT python)
endfunction()

retape_add_module(_C retape bindings/module.cpp
  bindings/policy.cpp bindings/recompute.cpp bindings/memory.cpp
  bindings/op_call.cpp bindings/check.cpp bindings/output_discard.cpp
  bindings/rerun.cpp bindings/rows.cpp bindings/verify.cpp)
set_source_files_properties(bindings/module.cpp PROPERTIES
  COMPILE_DEFINITIONS RETAPE_BUILT_FOR_TORCH="${Torch_VERSION}")
# Three at a time: a source alone costs six seconds, all as one half a minute for each change.
set_target_properties(_C PROPERTIES UNITY_BUILD ${RETAPE_UNITY} UNITY_BUILD_BATCH_SIZE 3)
target_precompile_headers(_C PRIVATE
  <torch/csrc/autograd/python_cpp_function.h>
  <torch/csrc/jit/python/pybind_utils.h>
  <torch/csrc/utils/pybind.h>
  <pybind11/stl.h>)

# Sums over ranks: imported by `retape.dist` alone.
retape_add_module(_dist retape_dist bindings/dist.cpp bindings/gradcheck.cpp)
set_target_properties(_dist PROPERTIES UNITY_BUILD ${RETAPE_UNITY})
target_precompile_headers(_dist REUSE_FROM _C)

# The C++ models, which only `retape verify cpp:...` imports.
add_subdirectory(models)
retape_add_module(_models retape_models bindings/models.cpp)
target_precompile_headers(_models REUSE_FROM retape_models)

# Glue: what it calls is compiled as ever, and its templates take minutes otherwise.
target_compile_options(_C PRIVATE -O1)
target_compile_options(_dist PRIVATE -O1)
target_compile_options(_models PRIVATE -O1)
