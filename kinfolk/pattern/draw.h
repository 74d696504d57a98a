// Who sees whom, for eyes: a pattern as text and as a matrix.
#pragma once
#include <string>

#include "kinfolk/pattern/pattern.h"

namespace kinfolk {

/// sees(i, j) for positions 0..length-1.  bool [length, length], rows are queries. For pictures and tests: length is
/// at most 8192, else Error.
Tensor draw_matrix(const Pattern& pattern, int64_t length);

/// A picture of `length` queries (down) and keys (across): # seen, . not seen, with the positions at the edges. Where
/// a picture of one character a pair would be wider than `widest`, a character stands for a square of pairs: # all of
/// them seen, + some, . none.
std::string draw_text(const Pattern& pattern, int64_t length, int64_t widest = 64);
/// The same for any square matrix (bool, rows see columns) under a title.
std::string draw_text(const Tensor& matrix, const std::string& title, int64_t widest = 64);

}  // namespace kinfolk
