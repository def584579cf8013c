# As configured by default no source knows of RETAPE_FAULTS; asked for, all of the library's do.
function(configure)
  execute_process(COMMAND ${CMAKE_COMMAND} -S ${SOURCE} -B ${BINARY} -DPython_EXECUTABLE=${Python_EXECUTABLE}
    ${ARGN} RESULT_VARIABLE failed ERROR_VARIABLE text OUTPUT_QUIET)
  if(failed)
    message(FATAL_ERROR "cannot configure: ${text}")
  endif()
  file(READ ${BINARY}/compile_commands.json commands)
  set(commands "${commands}" PARENT_SCOPE)
endfunction()

file(REMOVE_RECURSE ${BINARY})
set(with_fault "unity_src_check")  # its folder is compiled as one
configure()
if(commands MATCHES "RETAPE_FAULTS" OR NOT commands MATCHES "${with_fault}")
  message(FATAL_ERROR "expected a build without faults by default")
endif()
configure(-DRETAPE_FAULTS=ON)
if(NOT commands MATCHES "-DRETAPE_FAULTS[^\n]*${with_fault}")
  message(FATAL_ERROR "expected a build with faults when asked for")
endif()
