// Byte n-gram models: the baselines that every member has to beat.
#pragma once
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

namespace kinfolk {

/// Interpolated Witten-Bell smoothing over contexts of n = order bytes (order 1 = one byte of context):
///   P_n(x | c) = (count(c x) + types(c) P_{n-1}(x | c')) / (count(c) + types(c)),
/// c' = c without its first byte, types(c) = how many different bytes followed c, P_{-1} = 1/symbols; a context never
/// seen gives P_n = P_{n-1}. Counts are exact; the first bytes of a text use the shorter contexts that exist. (Witten &
/// Bell 1991; Chen & Goodman 1998, section 2.)
class NgramModel {
 public:
  /// `order` from 0 to 6; `symbols`: how many different bytes there can be. Throws UsageError otherwise.
  explicit NgramModel(int order, int symbols = 256);

  /// Adds the counts of one text. Several texts do not touch: no context crosses from one to the next.
  void train(std::span<const uint8_t> text);
  void train(std::string_view text) { train(bytes_of(text)); }
  /// Counts one byte that followed these (the nearest last), whatever they are: neighbours of a pixel, say.
  void add(std::span<const uint8_t> context, uint8_t next);
  /// Mean bits per byte, 0 for an empty text.
  double bits(std::span<const uint8_t> text) const;
  double bits(std::string_view text) const { return bits(bytes_of(text)); }
  /// P(next | the last `order` bytes of `context`).
  double probability(std::span<const uint8_t> context, uint8_t next) const;
  int order() const { return order_; }

 private:
  /// Counts by key (a context, or a context and its next byte): open addressing, linear probing.
  class Counts {
   public:
    struct Entry {
      uint64_t key = 0;  // 0 = free; keys are stored plus one
      uint64_t total = 0;
      uint32_t types = 0;
    };
    Entry& at(uint64_t key);
    const Entry* find(uint64_t key) const;

   private:
    void grow();
    std::vector<Entry> slots_;
    size_t used_ = 0;
  };

  static std::span<const uint8_t> bytes_of(std::string_view text) {
    return {reinterpret_cast<const uint8_t*>(text.data()), text.size()};
  }
  void add(uint64_t history, int known, uint8_t next);
  double probability(uint64_t history, int known, uint8_t next) const;

  int order_, symbols_;
  std::vector<Counts> contexts_, followed_;  // by length of the context: what followed it, and how often each byte did
};

}  // namespace kinfolk
