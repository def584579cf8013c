# Configuring with NDEBUG taken away must fail, and say why.
execute_process(COMMAND ${CMAKE_COMMAND} -S ${SOURCE} -B ${BINARY} -DCMAKE_CXX_FLAGS=-UNDEBUG
  -DPython_EXECUTABLE=${Python_EXECUTABLE} RESULT_VARIABLE failed ERROR_VARIABLE text OUTPUT_QUIET)
if(NOT failed OR NOT text MATCHES "must be compiled with -DNDEBUG")
  message(FATAL_ERROR "expected a refusal that names NDEBUG, got: ${text}")
endif()
