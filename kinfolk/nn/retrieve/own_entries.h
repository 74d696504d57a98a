// Which entries of a store are a text's own: what is scored or learned from must not look itself up.
#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "kinfolk/nn/retrieve/datastore.h"

namespace kinfolk {

/// Places place .. place + length - 1 of a text are the entries entry .. entry + length - 1: the same position of the
/// same text. Place p is the position after token p.
struct OwnRun {
  int64_t place = 0, entry = 0, length = 0;
  bool operator==(const OwnRun&) const = default;
};

/// Where stretches of `text` lie in `stored`, whose position i is entry first + i, found by their bytes alone: at least
/// 512 bytes that are the same, or all of the shorter one. So a text is found whatever its name, in part, at another
/// place, and as often as it was stored, while a sentence that it only shares with another is not its own.
std::vector<OwnRun> own_runs(std::span<const uint8_t> text, std::span<const uint8_t> stored, int64_t first);

/// The same over every text of a datastore.
std::vector<OwnRun> own_entries(const Datastore& store, std::span<const uint8_t> text);

}  // namespace kinfolk
