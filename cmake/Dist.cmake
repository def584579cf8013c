# Sums over ranks (retape::dist), over any c10d::ProcessGroup: no transport's headers are needed.
find_package(nlohmann_json 3.9 REQUIRED)  # headers only, of reports
add_library(retape_dist SHARED
  src/dist/bucket.cpp
  src/dist/call_fingerprint.cpp
  src/dist/clip.cpp
  src/dist/collective_queue.cpp
  src/dist/contribution.cpp
  src/dist/count.cpp
  src/dist/edge.cpp
  src/dist/gradcheck/absence.cpp
  src/dist/gradcheck/alike_rows.cpp
  src/dist/gradcheck/case.cpp
  src/dist/gradcheck/explain.cpp
  src/dist/gradcheck/fit.cpp
  src/dist/gradcheck/gather_outcomes.cpp
  src/dist/gradcheck/gradcheck.cpp
  src/dist/gradcheck/guess.cpp
  src/dist/gradcheck/judge.cpp
  src/dist/gradcheck/manifest.cpp
  src/dist/gradcheck/plan.cpp
  src/dist/gradcheck/report.cpp
  src/dist/gradcheck/row_random.cpp
  src/dist/gradcheck/runner.cpp
  src/dist/gradcheck/self_test.cpp
  src/dist/gradcheck/sizes.cpp
  src/dist/gradcheck/tolerance.cpp
  src/dist/gradcheck/variants.cpp
  src/dist/gradcheck/visibility.cpp
  src/dist/group.cpp
  src/dist/group_impl.cpp
  src/dist/liveness_monitor.cpp
  src/dist/mutated.cpp
  src/dist/placement.cpp
  src/dist/rank_text.cpp
  src/dist/reducer.cpp
  src/dist/row_exchange.cpp
  src/dist/summand.cpp
  src/dist/topology.cpp)
add_library(Retape::dist ALIAS retape_dist)
set_target_properties(retape_dist PROPERTIES
  EXPORT_NAME dist DEFINE_SYMBOL "" INSTALL_RPATH "$ORIGIN;$ORIGIN/../../torch/lib${editable_rpath}")
target_include_directories(retape_dist PRIVATE src)
target_link_libraries(retape_dist PUBLIC retape PRIVATE $<BUILD_INTERFACE:nlohmann_json::nlohmann_json>)
target_compile_options(retape_dist PRIVATE -Wall -Wextra -Wno-unused-parameter -Wno-missing-field-initializers -Werror)
# GCC 12 sees overflows inside std::string where a literal and a string are added.
target_compile_options(retape_dist PRIVATE -Wno-stringop-overflow -Wno-stringop-overread -Wno-restrict -Wno-array-bounds)
retape_unite_folders(retape_dist)
target_precompile_headers(retape_dist REUSE_FROM retape)
if(RETAPE_FAULTS)
  target_compile_definitions(retape_dist PRIVATE RETAPE_FAULTS)  # as in what is precompiled; it has none
endif()
