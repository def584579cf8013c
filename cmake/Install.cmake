include(GNUInstallDirs)
include(CMakePackageConfigHelpers)
set(config_dir lib/cmake/Retape)
install(TARGETS retape retape_dist EXPORT RetapeTargets LIBRARY DESTINATION lib)
install(DIRECTORY include/retape DESTINATION include)
install(EXPORT RetapeTargets NAMESPACE Retape:: DESTINATION ${config_dir})
configure_package_config_file(cmake/RetapeConfig.cmake.in RetapeConfig.cmake
  INSTALL_DESTINATION ${config_dir})
write_basic_package_version_file(RetapeConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES
  ${CMAKE_CURRENT_BINARY_DIR}/RetapeConfig.cmake
  ${CMAKE_CURRENT_BINARY_DIR}/RetapeConfigVersion.cmake
  DESTINATION ${config_dir})
