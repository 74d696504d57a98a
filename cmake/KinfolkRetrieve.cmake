# What datastores are searched with: hnswlib, which is headers alone, and FAISS where it is asked for.
find_path(KINFOLK_HNSWLIB hnswlib/hnswlib.h)
if(NOT KINFOLK_HNSWLIB)
  message(FATAL_ERROR "hnswlib was not found (Debian and Ubuntu: libhnswlib-dev)")
endif()

option(KINFOLK_FAISS "Search datastores by IVF-PQ too, with FAISS (Debian and Ubuntu: libfaiss-dev)" OFF)
if(KINFOLK_FAISS)
  find_path(KINFOLK_FAISS_HEADERS faiss/IndexIVFPQ.h)
  find_library(KINFOLK_FAISS_LIBRARY faiss)
  find_library(KINFOLK_LAPACK_LIBRARY lapack)
  find_library(KINFOLK_BLAS_LIBRARY blas)
  foreach(_found KINFOLK_FAISS_HEADERS KINFOLK_FAISS_LIBRARY KINFOLK_LAPACK_LIBRARY KINFOLK_BLAS_LIBRARY)
    if(NOT ${_found})
      message(FATAL_ERROR "KINFOLK_FAISS needs FAISS, LAPACK and BLAS (Debian: libfaiss-dev); ${_found} was not found")
    endif()
  endforeach()
  # Behind torch: whichever BLAS stands first on the line serves torch's own products as well, and the reference BLAS is
  # many times slower.
  target_link_libraries(kinfolk_torch INTERFACE
    "${KINFOLK_FAISS_LIBRARY}" "${KINFOLK_LAPACK_LIBRARY}" "${KINFOLK_BLAS_LIBRARY}")
  # Properties of two files: the others share a precompiled header.
  set_source_files_properties(kinfolk/nn/retrieve/search.cpp kinfolk/nn/retrieve/ivf_pq.cpp PROPERTIES
    COMPILE_DEFINITIONS KINFOLK_FAISS)
  if(NOT KINFOLK_FAISS_HEADERS STREQUAL "/usr/include")
    set_source_files_properties(kinfolk/nn/retrieve/ivf_pq.cpp PROPERTIES INCLUDE_DIRECTORIES "${KINFOLK_FAISS_HEADERS}")
  endif()
  message(STATUS "FAISS: ${KINFOLK_FAISS_LIBRARY}")
endif()
