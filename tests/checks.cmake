# The checks of the sources themselves, and the tests of those checks.
find_program(KINFOLK_CHECK_PYTHON NAMES python3 python REQUIRED)

function(kinfolk_check name)
  add_test(NAME "checks/${name}" COMMAND "${KINFOLK_CHECK_PYTHON}" ${ARGN} WORKING_DIRECTORY "${PROJECT_SOURCE_DIR}")
  set_tests_properties("checks/${name}" PROPERTIES TIMEOUT 300 LABELS checks ENVIRONMENT "PYTHONDONTWRITEBYTECODE=1")
endfunction()

kinfolk_check(includes "${PROJECT_SOURCE_DIR}/tools/check_includes")
kinfolk_check(style "${PROJECT_SOURCE_DIR}/tools/check_style")
kinfolk_check(members "${PROJECT_SOURCE_DIR}/tools/check_members" $<TARGET_FILE:kinfolk_cli>)
file(GLOB _tests CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/tests/tools/*_test.py")
foreach(_test IN LISTS _tests)
  get_filename_component(_name "${_test}" NAME_WE)
  kinfolk_check(${_name} "${_test}")
endforeach()

# The operators as Python sees them, by the Python whose torch is linked.
add_test(NAME python/operators COMMAND "${KINFOLK_PYTHON_FOUND}" "${PROJECT_SOURCE_DIR}/tests/python/operators_test.py")
set_tests_properties(python/operators PROPERTIES TIMEOUT 600 SKIP_RETURN_CODE 77 LABELS python ENVIRONMENT
  "OMP_NUM_THREADS=1;PYTHONDONTWRITEBYTECODE=1;KINFOLK_LIBRARY=$<TARGET_FILE:kinfolk>;KINFOLK_SANITIZE=${KINFOLK_SANITIZE}")

# What is installed serves a program outside this tree. (A sanitizer's run time would have to be linked there too.)
if(NOT KINFOLK_SANITIZE)
  add_test(NAME install/example COMMAND "${CMAKE_COMMAND}" "-DBUILD=${PROJECT_BINARY_DIR}" "-DSOURCE=${PROJECT_SOURCE_DIR}"
    "-DCOMPILER=${CMAKE_CXX_COMPILER}" "-DWORK=${PROJECT_BINARY_DIR}/install_test" -P "${PROJECT_SOURCE_DIR}/tests/install.cmake")
  set_tests_properties(install/example PROPERTIES TIMEOUT 600 ENVIRONMENT OMP_NUM_THREADS=1)
endif()
