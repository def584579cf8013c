# pybind11 as bundled in the torch wheel, so that tensors and exceptions are torch's own.
find_package(Python REQUIRED COMPONENTS Interpreter Development.Module)
find_library(TORCH_PYTHON_LIBRARY torch_python PATHS ${TORCH_INSTALL_PREFIX}/lib REQUIRED)
Python_add_library(_C MODULE bindings/module.cpp bindings/policy.cpp bindings/recompute.cpp bindings/memory.cpp
  bindings/check.cpp bindings/output_discard.cpp bindings/rerun.cpp bindings/rows.cpp bindings/verify.cpp)
target_link_libraries(_C PRIVATE retape ${TORCH_PYTHON_LIBRARY})
target_compile_definitions(_C PRIVATE TORCH_EXTENSION_NAME=_C RETAPE_BUILT_FOR_TORCH="${Torch_VERSION}")
target_compile_options(_C PRIVATE -Wall -Wextra -Wno-unused-parameter)
target_precompile_headers(_C PRIVATE <torch/csrc/utils/pybind.h>)
set_target_properties(_C PROPERTIES INSTALL_RPATH "$ORIGIN/lib;$ORIGIN/../torch/lib")
install(TARGETS _C LIBRARY DESTINATION . COMPONENT python)

# Sums over ranks: imported by `retape.dist` alone.
Python_add_library(_dist MODULE bindings/dist.cpp bindings/gradcheck.cpp)
target_link_libraries(_dist PRIVATE retape_dist ${TORCH_PYTHON_LIBRARY})
target_compile_definitions(_dist PRIVATE TORCH_EXTENSION_NAME=_dist)
target_compile_options(_dist PRIVATE -Wall -Wextra -Wno-unused-parameter)
set_target_properties(_dist PROPERTIES INSTALL_RPATH "$ORIGIN/lib;$ORIGIN/../torch/lib")
install(TARGETS _dist LIBRARY DESTINATION . COMPONENT python)

# The C++ models, which only `retape verify cpp:...` imports.
add_subdirectory(models)
Python_add_library(_models MODULE bindings/models.cpp)
target_link_libraries(_models PRIVATE retape_models ${TORCH_PYTHON_LIBRARY})
target_compile_definitions(_models PRIVATE TORCH_EXTENSION_NAME=_models)
target_compile_options(_models PRIVATE -Wall -Wextra)
set_target_properties(_models PROPERTIES INSTALL_RPATH "$ORIGIN/lib;$ORIGIN/../torch/lib")
install(TARGETS _models LIBRARY DESTINATION . COMPONENT python)
