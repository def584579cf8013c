# The Gloo that runs is inside libtorch: a second one beside it would have the same names.
execute_process(COMMAND readelf --dynamic --wide ${LIBRARY} OUTPUT_VARIABLE text RESULT_VARIABLE failed)
if(failed OR NOT text MATCHES "NEEDED[^\n]*libtorch")
  message(FATAL_ERROR "cannot tell what ${LIBRARY} links: ${text}")
endif()
if(text MATCHES "NEEDED[^\n]*gloo")
  message(FATAL_ERROR "expected no libgloo: ${text}")
endif()
