# Compiler, linker and cache settings shared by every target, and the function that makes a layer.
option(KINFOLK_CCACHE "Use ccache when it is installed" ON)
option(KINFOLK_WERROR "Warnings are errors" OFF)
set(KINFOLK_SANITIZE "" CACHE STRING "address, undefined, thread, or a comma list of them")

if(NOT CMAKE_BUILD_TYPE AND NOT CMAKE_CONFIGURATION_TYPES)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "" FORCE)
endif()
set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
add_compile_options(-fPIC)  # not POSITION_INDEPENDENT_CODE: that makes programs -fPIE, which cannot reuse a -fPIC PCH
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
set(CMAKE_CXX_FLAGS_RELEASE "-O2")  # asserts stay on: they are the cheap kind
set(CMAKE_CXX_FLAGS_RELWITHDEBINFO "-O2 -g1")
set(CMAKE_CXX_FLAGS_DEBUG "-O0 -g1")

# Not mold: version 1, which stable distributions carry, has made programs here that the loader refuses, and can spin for ever.
set(KINFOLK_LINKER "auto" CACHE STRING "auto (lld, else the default), or default")
if(KINFOLK_LINKER STREQUAL "auto")
  find_program(KINFOLK_LD_lld NAMES ld.lld)
  if(KINFOLK_LD_lld)
    add_link_options(-fuse-ld=lld)
    message(STATUS "Linker: lld")
  endif()
endif()

if(KINFOLK_CCACHE)
  find_program(KINFOLK_CCACHE_PROGRAM ccache)
  if(KINFOLK_CCACHE_PROGRAM)
    set(CMAKE_CXX_COMPILER_LAUNCHER ${CMAKE_COMMAND} -E env
      CCACHE_SLOPPINESS=pch_defines,time_macros,include_file_mtime,include_file_ctime
      CCACHE_BASEDIR=${PROJECT_SOURCE_DIR} ${KINFOLK_CCACHE_PROGRAM})
    if(CMAKE_CXX_COMPILER_ID MATCHES Clang)
      add_compile_options("SHELL:-Xclang -fno-pch-timestamp")  # else every rebuilt PCH misses
    else()
      add_compile_options(-fpch-preprocess)
    endif()
  endif()
endif()

if(KINFOLK_SANITIZE)
  add_compile_options(-fsanitize=${KINFOLK_SANITIZE} -fno-omit-frame-pointer -g1)
  add_link_options(-fsanitize=${KINFOLK_SANITIZE})
endif()

set(KINFOLK_INSTALL_RPATH "$ORIGIN;$ORIGIN/../${CMAKE_INSTALL_LIBDIR};${KINFOLK_TORCH_LIB}")

# kinfolk_target(<name>): warnings and rpath. Put on every target of our own.
function(kinfolk_target name)
  target_compile_options(${name} PRIVATE -Wall -Wextra -Wno-unknown-pragmas $<$<BOOL:${KINFOLK_WERROR}>:-Werror>)
  set_target_properties(${name} PROPERTIES
    BUILD_RPATH "${KINFOLK_TORCH_LIB}"
    INSTALL_RPATH "${KINFOLK_INSTALL_RPATH}")
endfunction()

set(KINFOLK_LAYERS "")
set(KINFOLK_LAYER_OBJECTS "")
# kinfolk_layer(<name> [HEADERS <pch>] [PCH <layer>]): kinfolk/<name>/**.cpp without the tests, as one object library.
# Its header precompiled, or that of another layer reused. `kernels` links no torch; all others do.
macro(kinfolk_layer name)
  cmake_parse_arguments(_layer "" "HEADERS;PCH" "" ${ARGN})
  file(GLOB_RECURSE _sources CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/kinfolk/${name}/*.cpp")
  list(FILTER _sources EXCLUDE REGEX "_test\\.cpp$")
  if(_sources)
    add_library(kinfolk_${name} OBJECT ${_sources})
    target_include_directories(kinfolk_${name} PRIVATE "${PROJECT_SOURCE_DIR}")
    if(NOT "${name}" STREQUAL "kernels")
      target_link_libraries(kinfolk_${name} PRIVATE kinfolk_torch)
    endif()
    if(_layer_HEADERS)
      target_precompile_headers(kinfolk_${name} PRIVATE "${PROJECT_SOURCE_DIR}/${_layer_HEADERS}")
    elseif(_layer_PCH)
      target_precompile_headers(kinfolk_${name} REUSE_FROM kinfolk_${_layer_PCH})
    endif()
    kinfolk_target(kinfolk_${name})
    list(APPEND KINFOLK_LAYERS ${name})
    list(APPEND KINFOLK_LAYER_OBJECTS $<TARGET_OBJECTS:kinfolk_${name}>)
    set(KINFOLK_OBJECTS_${name} ${KINFOLK_LAYER_OBJECTS})
  endif()
endmacro()
