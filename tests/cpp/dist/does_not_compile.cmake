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

# The error is in that line, or in a template that it has instantiated; a newer GCC quotes the line in between.
file(READ ${CMAKE_CURRENT_LIST_DIR}/no_compile.cpp source)
string(REGEX REPLACE "[];[]" " " source "${source}")  # which mean something in a list
string(REPLACE "\n" ";" source "${source}")
set(number 0)
set(wrong 0)
foreach(line IN LISTS source)
  math(EXPR number "${number} + 1")
  if(line MATCHES "// wrong: ")
    math(EXPR wrong "${wrong} + 1")
    set(here "no_compile\\.cpp:${number}:[0-9]+:")
    if(NOT output MATCHES "${here} error:|${here} +required from here\n( [^\n]*\n)*[^\n]*: error:")
      message(FATAL_ERROR "line ${number} compiles: ${line}\n${output}")
    endif()
  endif()
endforeach()
if(wrong LESS 5)
  message(FATAL_ERROR "${wrong} lines are marked as wrong")
endif()
