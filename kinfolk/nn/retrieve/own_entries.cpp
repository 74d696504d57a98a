#include "kinfolk/nn/retrieve/own_entries.h"

#include <algorithm>
#include <cstring>

namespace kinfolk {
namespace {

constexpr int64_t kShortest = 512;               // bytes of a run, unless the text is shorter
constexpr uint64_t kBase = 0x9e3779b97f4a7c15u;  // of the rolling hash

}  // namespace

std::vector<OwnRun> own_runs(std::span<const uint8_t> text, std::span<const uint8_t> stored, int64_t first) {
  const auto N = static_cast<int64_t>(text.size()), S = static_cast<int64_t>(stored.size());
  const int64_t shortest = std::min({kShortest, N, S});
  std::vector<OwnRun> out;
  if (shortest < 2) return out;
  // A run of `shortest` bytes holds a whole block, wherever blocks of half that length begin.
  const int64_t block = shortest / 2;
  const auto hash_of = [&](const uint8_t* at) {
    uint64_t hash = 0;
    for (int64_t i = 0; i < block; ++i) hash = hash * kBase + at[i] + 1;
    return hash;
  };
  std::unordered_multimap<uint64_t, int64_t> blocks;
  std::vector<bool> some(size_t{1} << 20);  // most places of the stored text are ruled out by this
  for (int64_t at = 0; at + block <= N; at += block) {
    const uint64_t hash = hash_of(text.data() + at);
    blocks.emplace(hash, at);
    some[hash >> 44] = true;
  }
  uint64_t leaving = 1;  // kBase^(block - 1)
  for (int64_t i = 1; i < block; ++i) leaving *= kBase;
  std::unordered_map<int64_t, int64_t> done;  // by place in `stored` minus place in `text`: compared up to here
  uint64_t hash = hash_of(stored.data());
  for (int64_t at = 0;; ++at) {
    if (some[hash >> 44]) {
      const auto [from, to] = blocks.equal_range(hash);
      for (auto it = from; it != to; ++it) {
        const int64_t offset = at - it->second;
        if (const auto known = done.find(offset); known != done.end() && known->second > at) continue;
        if (std::memcmp(text.data() + it->second, stored.data() + at, static_cast<size_t>(block)) != 0) continue;
        int64_t begin = at, end = at + block;
        while (begin > 0 && begin - offset > 0 &&
               text[static_cast<size_t>(begin - offset - 1)] == stored[static_cast<size_t>(begin - 1)])
          --begin;
        while (end < S && end - offset < N &&
               text[static_cast<size_t>(end - offset)] == stored[static_cast<size_t>(end)])
          ++end;
        done[offset] = end;
        // The last byte of what was stored follows a key, and has none itself.
        const int64_t keys = std::min(end, S - 1) - begin;
        if (end - begin >= shortest && keys > 0) out.push_back({begin - offset, first + begin, keys});
      }
    }
    if (at + block >= S) break;
    hash = (hash - leaving * (stored[static_cast<size_t>(at)] + uint64_t{1})) * kBase +
           stored[static_cast<size_t>(at + block)] + 1;
  }
  std::sort(out.begin(), out.end(), [](const OwnRun& a, const OwnRun& b) {
    return a.place != b.place ? a.place < b.place : a.entry < b.entry;
  });
  return out;
}

std::vector<OwnRun> own_entries(const Datastore& store, std::span<const uint8_t> text) {
  std::vector<OwnRun> out;
  std::vector<uint8_t> bytes;
  if (store.about().vocabulary < 256) {
    for (const uint8_t byte : text)
      if (byte >= store.about().vocabulary) return out;
  }
  for (const auto& one : store.texts()) {
    bytes.resize(static_cast<size_t>(one.count) + 1);
    bytes[0] = static_cast<uint8_t>(one.begin);
    for (int64_t i = 0; i < one.count; ++i)
      bytes[static_cast<size_t>(i) + 1] = static_cast<uint8_t>(store.token(one.first + i));
    const auto runs = own_runs(text, bytes, one.first);
    out.insert(out.end(), runs.begin(), runs.end());
  }
  return out;
}

}  // namespace kinfolk
