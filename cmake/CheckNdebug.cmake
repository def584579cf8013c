# Fails the configuration if something (CXXFLAGS, a toolchain file, a cache entry) takes NDEBUG away.
function(retape_check_ndebug)
  string(TOUPPER "${CMAKE_BUILD_TYPE}" config)
  set(flags "${CMAKE_CXX_FLAGS} ${CMAKE_CXX_FLAGS_${config}}")
  get_directory_property(definitions COMPILE_DEFINITIONS)
  if(NOT "NDEBUG" IN_LIST definitions OR flags MATCHES "-UNDEBUG")
    message(FATAL_ERROR
      "Retape must be compiled with -DNDEBUG, as the torch wheel is: without it at::RecordFunction "
      "and other structs have another layout and the process crashes. "
      "Fix: remove -UNDEBUG from CXXFLAGS (\"${flags}\").")
  endif()
endfunction()
