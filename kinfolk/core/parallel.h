// Loops over torch's own threads.
#pragma once
#include <cstdint>
#include <functional>

namespace kinfolk {

/// body(from, until) over parts of [begin, end) of at least `grain` items, on as many threads as torch uses. Serial
/// inside another parallel loop. The first error of a part is thrown again here. (at::parallel_for is serial, silently,
/// in a file that is compiled without OpenMP.)
void parallel_for(int64_t begin, int64_t end, int64_t grain, const std::function<void(int64_t, int64_t)>& body);

}  // namespace kinfolk
