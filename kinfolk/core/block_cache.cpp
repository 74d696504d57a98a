#include "kinfolk/core/block_cache.h"

#include <c10/core/CPUAllocator.h>
#include <sys/mman.h>

#include <mutex>

namespace kinfolk {
namespace {

constexpr size_t kLeast = size_t{1} << 20, kPage = size_t{1} << 12, kHuge = size_t{1} << 21, kSlack = size_t{16} << 20;

/// The blocks of the process. Never destroyed: tensors of static life come back after everything else has gone.
class Blocks {
 public:
  static Blocks& get() {
    static auto* blocks = new Blocks;
    return *blocks;
  }

  /// Null where the kernel has no more.
  void* take(size_t bytes) {
    const size_t size = (bytes + kPage - 1) / kPage * kPage;
    const std::lock_guard<std::mutex> lock(mutex_);
    auto found = free_.lower_bound(size);
    if (found != free_.end() && found->first <= size + size / 8) {
      void* block = found->second;
      kept_ -= found->first;
      use(block, found->first);
      free_.erase(found);
      return block;
    }
    const size_t most = std::max(most_, in_use_ + size), limit = most + most / 8 + kSlack;
    while (!free_.empty() && in_use_ + size + kept_ > limit) drop(std::prev(free_.end()));
    void* block = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (block == MAP_FAILED && !free_.empty()) {
      while (!free_.empty()) drop(free_.begin());
      block = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    }
    if (block == MAP_FAILED) return nullptr;
    if (size >= kHuge) madvise(block, size, MADV_HUGEPAGE);  // fewer faults; no matter where it fails
    use(block, size);
    return block;
  }

  /// False for a pointer that is none of these blocks.
  bool put_back(void* block) {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto found = live_.find(block);
    if (found == live_.end()) return false;
    in_use_ -= found->second;
    kept_ += found->second;
    free_.emplace(found->second, block);
    live_.erase(found);
    return true;
  }

  size_t kept() {
    const std::lock_guard<std::mutex> lock(mutex_);
    return kept_;
  }
  void give_back() {
    const std::lock_guard<std::mutex> lock(mutex_);
    while (!free_.empty()) drop(free_.begin());
    most_ = in_use_;
  }

 private:
  void use(void* block, size_t size) {
    live_[block] = size;
    in_use_ += size;
    most_ = std::max(most_, in_use_);
  }
  void drop(std::multimap<size_t, void*>::iterator which) {
    munmap(which->second, which->first);
    kept_ -= which->first;
    free_.erase(which);
  }

  std::mutex mutex_;
  std::unordered_map<void*, size_t> live_;
  std::multimap<size_t, void*> free_;
  size_t in_use_ = 0, kept_ = 0, most_ = 0;
};

class BlockAllocator final : public c10::Allocator {
 public:
  explicit BlockAllocator(c10::Allocator* small) : small_(small), small_deleter_(small->raw_deleter()) { self = this; }

  c10::DataPtr allocate(size_t bytes) override {
    void* block = bytes < kLeast ? nullptr : Blocks::get().take(bytes);
    if (!block) return small_->allocate(bytes);  // which also says that there is no memory
    c10::profiledCPUMemoryReporter().New(block, bytes);
    return {block, block, &release, c10::Device(c10::DeviceType::CPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &release; }
  void copy_data(void* to, const void* from, size_t bytes) const override { default_copy_data(to, from, bytes); }

 private:
  static void release(void* block) {
    if (!block) return;
    if (!Blocks::get().put_back(block)) return self->small_deleter_(block);
    c10::profiledCPUMemoryReporter().Delete(block);
  }
  static inline BlockAllocator* self = nullptr;
  c10::Allocator* small_;
  c10::DeleterFnPtr small_deleter_;
};

}  // namespace

void keep_large_blocks() {
  static const bool once = [] {
    c10::SetCPUAllocator(new BlockAllocator(c10::GetCPUAllocator()), 1);
    return true;
  }();
  (void)once;
}

int64_t kept_block_bytes() { return static_cast<int64_t>(Blocks::get().kept()); }
void give_back_kept_blocks() { Blocks::get().give_back(); }

}  // namespace kinfolk
