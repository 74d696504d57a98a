#include "kinfolk/eval/ngram.h"

#include <algorithm>
#include <cmath>

#include "kinfolk/core/errors.h"

namespace kinfolk {
namespace {

constexpr int kLargestOrder = 6;  // context and next byte fit in 56 bits

uint64_t last_bytes(uint64_t history, int count) { return history & ((uint64_t(1) << (8 * count)) - 1); }
size_t slot_of(uint64_t stored, size_t slots) { return (stored * 0x9e3779b97f4a7c15ull >> 20) & (slots - 1); }

}  // namespace

NgramModel::Counts::Entry& NgramModel::Counts::at(uint64_t key) {
  if (2 * (used_ + 1) > slots_.size()) grow();
  const uint64_t stored = key + 1;
  size_t slot = slot_of(stored, slots_.size());
  while (slots_[slot].key != 0 && slots_[slot].key != stored) slot = (slot + 1) & (slots_.size() - 1);
  if (slots_[slot].key == 0) {
    slots_[slot].key = stored;
    ++used_;
  }
  return slots_[slot];
}

const NgramModel::Counts::Entry* NgramModel::Counts::find(uint64_t key) const {
  if (slots_.empty()) return nullptr;
  const uint64_t stored = key + 1;
  for (size_t slot = slot_of(stored, slots_.size()); slots_[slot].key != 0; slot = (slot + 1) & (slots_.size() - 1))
    if (slots_[slot].key == stored) return &slots_[slot];
  return nullptr;
}

void NgramModel::Counts::grow() {
  std::vector<Entry> old(std::max<size_t>(1024, 2 * slots_.size()));
  old.swap(slots_);
  used_ = 0;
  for (const Entry& entry : old)
    if (entry.key != 0) at(entry.key - 1) = entry;
}

NgramModel::NgramModel(int order, int symbols) : order_(order), symbols_(symbols) {
  if (symbols < 1 || symbols > 256) refuse("[ngram.symbols] expected 1 to 256; found ", symbols);
  if (order < 0 || order > kLargestOrder)
    refuse("[ngram.order] expected 0 to ", kLargestOrder, " bytes of context; found ", order);
  contexts_.resize(static_cast<size_t>(order) + 1);
  followed_.resize(static_cast<size_t>(order) + 1);
}

void NgramModel::add(uint64_t history, int known, uint8_t next) {
  for (int n = 0; n <= std::min(order_, known); ++n) {
    const uint64_t context = last_bytes(history, n);
    Counts::Entry& seen = contexts_[static_cast<size_t>(n)].at(context);
    ++seen.total;
    if (followed_[static_cast<size_t>(n)].at(context << 8 | next).total++ == 0) ++seen.types;
  }
}

void NgramModel::add(std::span<const uint8_t> context, uint8_t next) {
  uint64_t history = 0;
  for (const uint8_t byte : context) history = history << 8 | byte;
  add(history, static_cast<int>(std::min<size_t>(context.size(), kLargestOrder)), next);
}

void NgramModel::train(std::span<const uint8_t> text) {
  for (int n = 0; n <= order_; ++n) {
    Counts &contexts = contexts_[static_cast<size_t>(n)], &followed = followed_[static_cast<size_t>(n)];
    uint64_t history = 0;
    for (size_t i = 0; i < text.size(); ++i) {
      if (i >= static_cast<size_t>(n)) {
        const uint64_t context = last_bytes(history, n);
        Counts::Entry& seen = contexts.at(context);
        ++seen.total;
        if (followed.at(context << 8 | text[i]).total++ == 0) ++seen.types;
      }
      history = history << 8 | text[i];
    }
  }
}

double NgramModel::probability(uint64_t history, int known, uint8_t next) const {
  double p = 1.0 / symbols_;
  for (int n = 0; n <= std::min(order_, known); ++n) {
    const uint64_t context = last_bytes(history, n);
    const Counts::Entry* seen = contexts_[static_cast<size_t>(n)].find(context);
    if (seen == nullptr) break;  // then no longer context was seen either
    const Counts::Entry* pair = followed_[static_cast<size_t>(n)].find(context << 8 | next);
    p = (static_cast<double>(pair ? pair->total : 0) + seen->types * p) /
        static_cast<double>(seen->total + seen->types);
  }
  return p;
}

double NgramModel::probability(std::span<const uint8_t> context, uint8_t next) const {
  uint64_t history = 0;
  for (uint8_t byte : context) history = history << 8 | byte;
  return probability(history, static_cast<int>(std::min<size_t>(context.size(), kLargestOrder)), next);
}

double NgramModel::bits(std::span<const uint8_t> text) const {
  if (text.empty()) return 0;
  double sum = 0;
  uint64_t history = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    sum -= std::log2(probability(history, static_cast<int>(std::min<size_t>(i, kLargestOrder)), text[i]));
    history = history << 8 | text[i];
  }
  return sum / static_cast<double>(text.size());
}

}  // namespace kinfolk
