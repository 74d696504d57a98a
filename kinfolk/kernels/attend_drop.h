// Which weights of attention are dropped: a counter-based generator, a function of the seed, the head and the names of
// query and key alone, so that any tiling, instruction set and number of threads draws the same.
#pragma once
#include <cstdint>

namespace kinfolk::kernels {

/// Two 32-bit words of a head and query, or of a key.
struct DropWords {
  uint32_t a = 0, b = 0;
};

/// The finaliser of splitmix64 (Steele, Lea and Flood 2014).
inline uint64_t drop_mix(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ull;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBull;
  return x ^ (x >> 31);
}
inline DropWords drop_words(uint64_t x) { return {static_cast<uint32_t>(x), static_cast<uint32_t>(x >> 32)}; }

constexpr uint64_t kDropStep = 0x9E3779B97F4A7C15ull;
inline uint64_t drop_head(uint64_t seed, int64_t head) {
  return drop_mix(drop_mix(seed + kDropStep) + kDropStep * static_cast<uint64_t>(head + 1));
}
inline DropWords drop_query(uint64_t head, int64_t name) {
  return drop_words(drop_mix(head + kDropStep * static_cast<uint64_t>(name)));
}
inline DropWords drop_key(int64_t name) {
  return drop_words(drop_mix(0x632BE59BD9B4E019ull + kDropStep * static_cast<uint64_t>(name)));
}

/// A weight is dropped where drop_bits < drop_limit(rate).
inline int32_t drop_limit(double rate) { return static_cast<int32_t>(rate * 4294967295.0 - 2147483648.0); }

constexpr uint32_t kDropFirst = 0x9E3779B1u, kDropSecond = 0x85EBCA77u, kDropThird = 0xC2B2AE3Du;
/// Only the highest bits are good. attend_tile_body.h has the same for vectors.
inline uint32_t drop_bits(const DropWords& query, const DropWords& key) {
  uint32_t x = (query.a ^ key.a) * kDropFirst;
  x = (x ^ (x >> 15)) + (query.b ^ key.b);
  x *= kDropSecond;
  return (x ^ (x >> 13)) * kDropThird;
}
inline bool dropped(const DropWords& query, const DropWords& key, int32_t limit) {
  return static_cast<int32_t>(drop_bits(query, key)) < limit;
}

}  // namespace kinfolk::kernels
