#include "kinfolk/core/parallel.h"

#include <ATen/Parallel.h>

#include <exception>
#include <mutex>

// libgomp's own entry point, so that clang and gcc both reach the OpenMP threads that torch uses: clang's -fopenmp
// would bring a second runtime.
extern "C" {
void GOMP_parallel(void (*fn)(void*), void* data, unsigned num_threads, unsigned flags);
int omp_get_num_threads();
int omp_get_thread_num();
}

namespace kinfolk {
namespace {

struct Job {
  int64_t begin, end, grain;
  const std::function<void(int64_t, int64_t)>* body;
  std::mutex mutex;
  std::exception_ptr error;
};

void work(void* data) {
  Job& job = *static_cast<Job*>(data);
  const int64_t items = job.end - job.begin, id = omp_get_thread_num();
  const int64_t parts = std::min<int64_t>(omp_get_num_threads(), at::divup(items, std::max<int64_t>(job.grain, 1)));
  const int64_t each = at::divup(items, parts), from = job.begin + id * each;
  if (from >= job.end) return;
  try {
    at::internal::ThreadIdGuard thread_id(static_cast<int>(id));
    c10::ParallelGuard in_parallel(true);
    (*job.body)(from, std::min(job.end, from + each));
  } catch (...) {
    const std::lock_guard lock(job.mutex);
    if (!job.error) job.error = std::current_exception();
  }
}

}  // namespace

void parallel_for(int64_t begin, int64_t end, int64_t grain, const std::function<void(int64_t, int64_t)>& body) {
  if (begin >= end) return;
  at::internal::lazy_init_num_threads();
  if (end - begin <= grain || at::in_parallel_region() || at::get_num_threads() == 1) {
    body(begin, end);
    return;
  }
  Job job{begin, end, grain, &body, {}, {}};
  GOMP_parallel(work, &job, 0, 0);
  if (job.error) std::rethrow_exception(job.error);
}

}  // namespace kinfolk
