# Configures, builds and runs a C++ user's project against the installed package.
execute_process(COMMAND ${CMAKE_COMMAND} -S ${SOURCE} -B ${BINARY} -DRetape_DIR=${Retape_DIR}
  COMMAND_ERROR_IS_FATAL ANY OUTPUT_QUIET)
execute_process(COMMAND ${CMAKE_COMMAND} --build ${BINARY} COMMAND_ERROR_IS_FATAL ANY OUTPUT_QUIET)
execute_process(COMMAND ${BINARY}/main OUTPUT_VARIABLE out COMMAND_ERROR_IS_FATAL ANY)
message("${out}")
if(NOT out MATCHES "every gradient bit-identical: yes")
  message(FATAL_ERROR "the example did not say that the gradients are the same")
endif()
