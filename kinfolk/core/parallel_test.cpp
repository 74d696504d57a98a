#include "kinfolk/core/parallel.h"

#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <atomic>
#include <stdexcept>
#include <vector>

namespace kinfolk {
namespace {

TEST(ParallelFor, VisitsEveryItemOnce) {
  for (int64_t items : {0, 1, 2, 5, 1000}) {
    for (int64_t grain : {0, 1, 3, 2000}) {
      std::vector<std::atomic<int>> seen(static_cast<size_t>(items));
      parallel_for(0, items, grain, [&](int64_t from, int64_t until) {
        for (int64_t i = from; i < until; i++) seen[static_cast<size_t>(i)]++;
      });
      for (const auto& count : seen) EXPECT_EQ(count, 1);
    }
  }
}

TEST(ParallelFor, UsesTorchsThreads) {
  std::atomic<int> parts{0};
  parallel_for(0, 1000, 1, [&](int64_t, int64_t) { parts++; });
  EXPECT_EQ(parts, at::get_num_threads());
}

TEST(ParallelFor, ThrowsWhatAPartThrew) {
  EXPECT_THROW(parallel_for(0, 10, 1,
                            [](int64_t from, int64_t) {
                              if (from == 0) throw std::runtime_error("part");
                            }),
               std::runtime_error);
}

}  // namespace
}  // namespace kinfolk
