#include "kinfolk/pattern/draw.h"

#include <algorithm>

#include "kinfolk/core/errors.h"

namespace kinfolk {

Tensor draw_matrix(const Pattern& pattern, int64_t length) {
  if (length < 1 || length > 8192) fail("[draw.length] expected 1 to 8192 positions; found ", length);
  const Tensor at = at::arange(length, at::kLong);
  return pattern.sees(at.unsqueeze(1), at.unsqueeze(0));  // [length, length]
}

std::string draw_text(const Pattern& pattern, int64_t length, int64_t widest) {
  return draw_text(draw_matrix(pattern, length), pattern.text() + ": query i (down) sees key j (across)", widest);
}

std::string draw_text(const Tensor& matrix, const std::string& title, int64_t widest) {
  if (widest < 1) fail("[draw.widest] expected at least 1 character; found ", widest);
  if (matrix.dim() != 2 || matrix.size(0) != matrix.size(1) || matrix.size(0) < 1) {
    fail("[draw.matrix] expected a square; found sizes ", matrix.sizes());
  }
  const Tensor seen = matrix.to(at::kBool).contiguous();
  const int64_t length = seen.size(0);
  const bool* pairs = seen.const_data_ptr<bool>();
  const int64_t side = (length + widest - 1) / widest, cells = (length + side - 1) / side;
  const auto digits = static_cast<int64_t>(text(length - 1).size());
  const auto padded = [&](const std::string& label) {
    return std::string(static_cast<size_t>(std::max<int64_t>(digits - static_cast<int64_t>(label.size()), 0)), ' ') +
           label;
  };

  std::string out = title + "\n";
  out += side == 1 ? "# seen  . not seen\n"
                   : text("a character is ", side, " x ", side, " pairs: # all seen  + some  . none\n");
  std::string numbers, ticks;  // a label every 8 cells, above its tick
  for (int64_t cell = 0; cell < cells; ++cell) {
    ticks += cell % 8 == 0 ? '|' : ' ';
    if (cell % 8 == 0 && static_cast<int64_t>(numbers.size()) <= cell) {
      numbers += std::string(static_cast<size_t>(cell) - numbers.size(), ' ') + text(cell * side);
    }
  }
  ticks.erase(ticks.find_last_not_of(' ') + 1);
  const std::string margin(static_cast<size_t>(digits) + 2, ' ');
  out += margin + numbers + "\n" + margin + ticks + "\n";
  for (int64_t row = 0; row < cells; ++row) {
    out += padded(text(row * side)) + "  ";
    for (int64_t column = 0; column < cells; ++column) {
      int64_t count = 0, all = 0;
      for (int64_t i = row * side; i < std::min(length, (row + 1) * side); ++i)
        for (int64_t j = column * side; j < std::min(length, (column + 1) * side); ++j, ++all)
          count += pairs[i * length + j];
      out += count == 0 ? '.' : count == all ? '#' : '+';
    }
    out += '\n';
  }
  return out;
}

}  // namespace kinfolk
