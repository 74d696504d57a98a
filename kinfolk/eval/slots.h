// What a compressive memory holds, segment by segment: which tokens each of its slots stands for.
#pragma once
#include <map>
#include <string>
#include <vector>

#include "kinfolk/nn/recipe.h"

namespace kinfolk {

/// The memory of a layer as the segment that begins at `begin` finds it.
struct MemoryMoment {
  struct Slot {
    int64_t at = 0;               ///< the token in whose place it stands
    int64_t from = 0, to = 0;     ///< it stands for the tokens [from, to)
    int64_t first = 0, last = 0;  ///< and is made of these tokens and those between
    bool hidden = false;          ///< of several documents: nobody sees it
  };
  int64_t begin = 0;
  std::vector<Slot> slots;  ///< oldest first
  int64_t fifo = 0;         ///< the inputs of [fifo, begin) are kept as they are
};

struct MemoryPicture {
  std::vector<int64_t> layers;  ///< groups of layers that have this memory; empty: all that have one
  std::string compression;
  int64_t segment = 0, memory = 0, slots = 0, rate = 0;  ///< N, m_m, m_cm, c
  int64_t tokens = 0;
  std::vector<MemoryMoment> moments;  ///< one for each segment
};

/// One for each kind of compressive memory in the recipe, measured by running an untrained member over `tokens` tokens
/// (0: so many that slots are forgotten, at most `most`), with the facts of a batch of one lane. None: it has none.
std::vector<MemoryPicture> memory_pictures(const Recipe& recipe, int64_t tokens, int64_t most,
                                           const std::map<std::string, at::Tensor>& facts = {});
bool has_slots(const Recipe& recipe);
/// The tokens after which a segment begins that finds a slot.
int64_t first_slot(const MemoryPicture& picture);

/// A line for each segment, a character for each token.
std::string draw_text(const MemoryPicture& picture);
/// The same as a picture; the note goes below the title.
std::string svg(const MemoryPicture& picture, const std::string& title, const std::string& note = "");

}  // namespace kinfolk
