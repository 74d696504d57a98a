# Installs a build below a temporary prefix, builds the C++ example there as a stranger would, and runs it and the program.
# usage: cmake -DBUILD=<build folder> -DSOURCE=<checkout> -DCOMPILER=<c++> -DWORK=<folder to use> -P tests/install.cmake
file(REMOVE_RECURSE "${WORK}")
set(prefix "${WORK}/prefix")

# step(<what> <command>...): runs it from WORK; a failure shows the output and ends the test. Output in `out`.
function(step what)
  execute_process(COMMAND ${ARGN} WORKING_DIRECTORY "${WORK}" OUTPUT_VARIABLE output ERROR_VARIABLE errors RESULT_VARIABLE status)
  if(NOT status EQUAL 0)
    message(FATAL_ERROR "${what} failed (${status}):\n${output}${errors}")
  endif()
  set(out "${output}" PARENT_SCOPE)
endfunction()

file(MAKE_DIRECTORY "${WORK}")
step("install" "${CMAKE_COMMAND}" --install "${BUILD}" --prefix "${prefix}")
foreach(path bin/kinfolk include/kinfolk/core/errors.h include/kinfolk/nn/model.h share/kinfolk/recipes/rope.toml
        share/kinfolk/recipes/sizes/tiny.toml share/kinfolk/golden)
  if(NOT EXISTS "${prefix}/${path}")
    message(FATAL_ERROR "expected ${path} among what is installed; found nothing there")
  endif()
endforeach()
foreach(path include/kinfolk/reference include/kinfolk/nn/pch.h)
  if(EXISTS "${prefix}/${path}")
    message(FATAL_ERROR "${path} is installed and should not be")
  endif()
endforeach()
step("the installed program" "${prefix}/bin/kinfolk" list)
if(NOT out MATCHES "transformer_xl")
  message(FATAL_ERROR "expected the installed program to list transformer_xl; found:\n${out}")
endif()
step("configuring the example" "${CMAKE_COMMAND}" -S "${SOURCE}/examples/cpp" -B "${WORK}/build" -G Ninja
  "-DCMAKE_PREFIX_PATH=${prefix}" "-DCMAKE_CXX_COMPILER=${COMPILER}")
step("building the example" "${CMAKE_COMMAND}" --build "${WORK}/build")
# A recipe that exists below the prefix alone shows that the example reads what is installed and not this checkout.
configure_file("${prefix}/share/kinfolk/recipes/rope.toml" "${prefix}/share/kinfolk/recipes/only_here.toml" COPYONLY)
step("the example" "${WORK}/build/1_decode" only_here)
if(NOT out MATCHES "^[0-9]+( [0-9]+)+\n$")
  message(FATAL_ERROR "expected the example to print byte values; found:\n${out}")
endif()
step("the example of a session" "${WORK}/build/2_session" rope "${WORK}/reading.session")
if(NOT out MATCHES "^[0-9]+ [0-9]+\n$" OR NOT EXISTS "${WORK}/reading.session")
  message(FATAL_ERROR "expected the example to print two byte values and to leave a session; found:\n${out}")
endif()
