# `cmake --install`: program, library, headers as they lie, recipes and golden cases, and a CMake package
#   find_package(kinfolk) -> kinfolk::kinfolk
include(CMakePackageConfigHelpers)
set(_package "${CMAKE_INSTALL_LIBDIR}/cmake/kinfolk")

install(TARGETS kinfolk EXPORT kinfolk_targets)
install(TARGETS kinfolk_cli)
install(DIRECTORY kinfolk/ DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}/kinfolk" FILES_MATCHING PATTERN "*.h"
        PATTERN "pch.h" EXCLUDE PATTERN "reference" EXCLUDE)
install(DIRECTORY recipes DESTINATION "${CMAKE_INSTALL_DATADIR}/kinfolk" FILES_MATCHING PATTERN "*.toml")
if(EXISTS "${PROJECT_SOURCE_DIR}/tests/golden")
  install(DIRECTORY tests/golden DESTINATION "${CMAKE_INSTALL_DATADIR}/kinfolk")
endif()
install(FILES LICENSE DESTINATION "${CMAKE_INSTALL_DOCDIR}")

install(EXPORT kinfolk_targets NAMESPACE kinfolk:: DESTINATION "${_package}")
configure_package_config_file(cmake/kinfolkConfig.cmake.in "${PROJECT_BINARY_DIR}/kinfolkConfig.cmake"
  INSTALL_DESTINATION "${_package}" NO_SET_AND_CHECK_MACRO)
write_basic_package_version_file("${PROJECT_BINARY_DIR}/kinfolkConfigVersion.cmake" COMPATIBILITY SameMinorVersion)
install(FILES cmake/KinfolkTorch.cmake "${PROJECT_BINARY_DIR}/kinfolkConfig.cmake"
  "${PROJECT_BINARY_DIR}/kinfolkConfigVersion.cmake" DESTINATION "${_package}")
