# Sums over ranks (retape::dist). Gloo's headers are for one source file, and its library is never linked:
# the one that runs is inside libtorch.
find_path(GLOO_INCLUDE_DIR gloo/context.h)
if(NOT GLOO_INCLUDE_DIR)
  message(FATAL_ERROR "Gloo's headers are missing. Fix: apt-get install libgloo-dev (headers only; it is not linked).")
endif()
find_package(nlohmann_json 3.9 REQUIRED)  # headers only, of reports
add_library(retape_dist SHARED
  src/dist/agreement.cpp
  src/dist/board.cpp
  src/dist/bucket.cpp
  src/dist/clip.cpp
  src/dist/contribution.cpp
  src/dist/count.cpp
  src/dist/courier.cpp
  src/dist/edge.cpp
  src/dist/exchange.cpp
  src/dist/gloo.cpp
  src/dist/group.cpp
  src/dist/group_impl.cpp
  src/dist/mutated.cpp
  src/dist/patient_store.cpp
  src/dist/placement.cpp
  src/dist/reducer.cpp
  src/dist/roll_call.cpp
  src/dist/run_ranks.cpp
  src/dist/sentry.cpp
  src/dist/store.cpp
  src/dist/summand.cpp
  src/dist/topology.cpp
  src/dist/watch.cpp
  src/dist/whereabouts.cpp
  src/dist/world.cpp
  src/gradcheck/absence.cpp
  src/gradcheck/alike_rows.cpp
  src/gradcheck/case.cpp
  src/gradcheck/explain.cpp
  src/gradcheck/fit.cpp
  src/gradcheck/gradcheck.cpp
  src/gradcheck/guess.cpp
  src/gradcheck/judge.cpp
  src/gradcheck/manifest.cpp
  src/gradcheck/plan.cpp
  src/gradcheck/report.cpp
  src/gradcheck/row_random.cpp
  src/gradcheck/runner.cpp
  src/gradcheck/self_test.cpp
  src/gradcheck/sizes.cpp
  src/gradcheck/tolerance.cpp
  src/gradcheck/unite.cpp
  src/gradcheck/variants.cpp
  src/gradcheck/visibility.cpp
)
add_library(Retape::dist ALIAS retape_dist)
set_target_properties(retape_dist PROPERTIES EXPORT_NAME dist INSTALL_RPATH "$ORIGIN;$ORIGIN/../../torch/lib")
target_include_directories(retape_dist PRIVATE src)
target_include_directories(retape_dist SYSTEM PRIVATE ${GLOO_INCLUDE_DIR})
set_source_files_properties(src/dist/gloo.cpp PROPERTIES SKIP_PRECOMPILE_HEADERS ON SKIP_UNITY_BUILD_INCLUSION ON)
target_link_libraries(retape_dist PUBLIC retape PRIVATE $<BUILD_INTERFACE:nlohmann_json::nlohmann_json>)
target_compile_options(retape_dist PRIVATE -Wall -Wextra -Wno-unused-parameter -Wno-missing-field-initializers -Werror)
# GCC 12 sees overflows inside std::string where a literal and a string are added.
target_compile_options(retape_dist PRIVATE -Wno-stringop-overflow -Wno-stringop-overread -Wno-restrict -Wno-array-bounds)
retape_unite_folders(retape_dist)
target_precompile_headers(retape_dist PRIVATE <ATen/Functions.h> <torch/csrc/distributed/c10d/ProcessGroup.hpp>)
