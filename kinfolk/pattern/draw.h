// Who sees whom, for eyes: a pattern as text and as a matrix.
#pragma once
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "kinfolk/pattern/pattern.h"

namespace kinfolk {

/// The facts of a batch (one lane) that a picture of `length` positions is drawn with where none are given: a third of
/// the positions are the prefix, the first and the middle one are global.
std::map<std::string, Tensor> drawn_facts(int64_t length);

/// sees(i, j) for positions 0..length-1 in a batch of one lane with these facts; with "segment" nobody sees another
/// document. bool [length, length], rows are queries. For pictures and tests: length is at most 8192, else Error.
Tensor draw_matrix(const std::shared_ptr<const Pattern>& pattern, int64_t length,
                   const std::map<std::string, Tensor>& facts);
Tensor draw_matrix(const Pattern& pattern, int64_t length);  ///< of a pattern that reads no facts

/// Whether a picture says more than that everybody sees all, or all before: some of the future is seen and not all of
/// it, or less than `most` of the pairs of the past.
bool shows_structure(const Tensor& matrix, double most = 0.7);

/// A picture of `length` queries (down) and keys (across): # seen, . not seen, with the positions at the edges. Where
/// a picture of one character a pair would be wider than `widest`, a character stands for a square of pairs: # all of
/// them seen, + some, . none.
std::string draw_text(const Pattern& pattern, int64_t length, int64_t widest = 64);
/// The same for any square matrix (bool, rows see columns) under a title.
std::string draw_text(const Tensor& matrix, const std::string& title, int64_t widest = 64);

/// A matrix under a title of its own.
struct Drawing {
  std::string title;
  Tensor matrix;  ///< bool, square
};
/// Several of one size under a common title, as many side by side as fit into `columns` characters; titles first, by
/// number. One alone is drawn under both titles.
std::string draw_text(const std::vector<Drawing>& drawings, const std::string& title, int64_t widest = 64,
                      int64_t columns = 120);

}  // namespace kinfolk
