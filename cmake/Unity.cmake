# Most of what a source costs is what torch's headers make the compiler instantiate at its end, seconds for each.
# So the sources of a folder are compiled as one. Names without linkage are then the folder's: it is one concept.
function(retape_unite_folders target)
  if(NOT RETAPE_UNITY)
    return()
  endif()
  get_target_property(sources ${target} SOURCES)
  foreach(source ${sources})
    get_filename_component(folder ${source} DIRECTORY)
    string(REPLACE "/" "_" group ${folder})
    set_source_files_properties(${source} PROPERTIES UNITY_GROUP ${group})
  endforeach()
  set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_MODE GROUP)
  target_compile_options(${target} PRIVATE -Wno-subobject-linkage)  # a source is an included file then
endfunction()
