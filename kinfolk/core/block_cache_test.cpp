#include "kinfolk/core/block_cache.h"

#include <c10/core/CPUAllocator.h>
#include <gtest/gtest.h>

#include <thread>

#include "kinfolk/core/memory.h"

namespace kinfolk {
namespace {

constexpr int64_t kMiB = 1 << 20;

at::Tensor block(int64_t mebibytes) { return at::empty({mebibytes * kMiB}, at::kByte); }

class BlockCache : public ::testing::Test {
 protected:
  void SetUp() override {
    keep_large_blocks();
    give_back_kept_blocks();
  }
};

TEST_F(BlockCache, ATensorTakesWhatAnEarlierOneFreed) {
  const void* place = nullptr;
  {
    const at::Tensor first = block(8);
    place = first.data_ptr();
    EXPECT_EQ(reinterpret_cast<uintptr_t>(place) % 64, 0u);
  }
  EXPECT_EQ(kept_block_bytes(), 8 * kMiB);
  EXPECT_NE(block(3).data_ptr(), place);  // too small for it
  const at::Tensor again = block(8);
  EXPECT_EQ(again.data_ptr(), place);
  give_back_kept_blocks();
  EXPECT_EQ(kept_block_bytes(), 0);
}

TEST_F(BlockCache, KeptBlocksMakeRoomForOthers) {
  for (int size = 40; size < 60; ++size) {
    block(size);
    EXPECT_LE(kept_block_bytes(), size * kMiB + size * kMiB / 8 + 16 * kMiB);
  }
  std::vector<at::Tensor> held;
  for (int n = 0; n < 10; ++n) held.push_back(block(5));
  held.clear();
  const at::Tensor other = block(50);  // as much as there was: the small ones must go
  EXPECT_LE(kept_block_bytes(), 50 * kMiB / 8 + 16 * kMiB + 8 * kMiB);
}

TEST_F(BlockCache, BlocksAreGivenBackToTheKernel) {
  { block(64).fill_(1); }
  const int64_t before = resident_bytes();
  give_back_kept_blocks();
  EXPECT_LE(resident_bytes(), before - 60 * kMiB);
}

TEST_F(BlockCache, ResizingSmallOnesAndRawPointers) {
  at::Tensor grows = at::ones({8}, at::kFloat);
  grows.resize_({kMiB});
  EXPECT_EQ(grows.slice(0, 0, 8).sum().item<double>(), 8);
  grows.resize_({4 * kMiB});
  EXPECT_EQ(grows.slice(0, 0, 8).sum().item<double>(), 8);
  auto* allocator = c10::GetCPUAllocator();
  for (const size_t bytes : {size_t{0}, size_t{100}, size_t{3} << 20})
    allocator->raw_deallocate(allocator->raw_allocate(bytes));
}

TEST_F(BlockCache, ManyThreads) {
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([t] {
      for (int n = 0; n < 200; ++n) {
        const at::Tensor x = block(1 + (n * 7 + t) % 5);
        x.fill_(t);
        ASSERT_EQ(x[-1].item<int>(), t);
      }
    });
  for (auto& thread : threads) thread.join();
}

TEST_F(BlockCache, NoMemoryIsStillSaid) { EXPECT_THROW(block(int64_t{1} << 30), c10::Error); }

}  // namespace
}  // namespace kinfolk
