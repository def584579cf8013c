# cmake -DBINARY=<build> -P: the right lines compile, and each of the wrong ones is an error of its own.
execute_process(COMMAND ${CMAKE_COMMAND} --build ${BINARY} --target dist_compiles
  RESULT_VARIABLE failed OUTPUT_VARIABLE output ERROR_VARIABLE output)
if(failed)
  message(FATAL_ERROR "the right lines do not compile:\n${output}")
endif()
execute_process(COMMAND ${CMAKE_COMMAND} --build ${BINARY} --target dist_does_not_compile
  RESULT_VARIABLE failed OUTPUT_VARIABLE output ERROR_VARIABLE output)
if(NOT failed)
  message(FATAL_ERROR "the wrong lines compile")
endif()
foreach(text
    "A Replicated value in a sum would be counted once per rank"
    "A Replicated value added to a Partial one would be counted once per rank"
    "Fix: retape::dist::contribute_once"
    "no known conversion for argument 2 from [^ ]*int[^ ]* to .*GlobalCount"
    "GlobalCount::GlobalCount\\(int64_t, .* is private")
  if(NOT output MATCHES "${text}")
    message(FATAL_ERROR "no error says \"${text}\":\n${output}")
  endif()
endforeach()
