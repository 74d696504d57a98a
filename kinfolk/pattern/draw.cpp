#include "kinfolk/pattern/draw.h"

#include <algorithm>

#include "kinfolk/core/errors.h"

namespace kinfolk {
namespace {

void check_length(int64_t length) {
  if (length < 1 || length > 8192) fail("[draw.length] expected 1 to 8192 positions; found ", length);
}

/// The squares of pairs that one character stands for.
int64_t side_of(int64_t length, int64_t widest) { return (length + widest - 1) / widest; }

std::string legend(int64_t side) {
  return side == 1 ? "# seen  . not seen"
                   : text("a character is ", side, " x ", side, " pairs: # all seen  + some  . none");
}

/// The picture without title and legend: numbers, ticks, rows.
std::vector<std::string> lines_of(const Tensor& matrix, int64_t widest) {
  if (widest < 1) fail("[draw.widest] expected at least 1 character; found ", widest);
  if (matrix.dim() != 2 || matrix.size(0) != matrix.size(1) || matrix.size(0) < 1) {
    fail("[draw.matrix] expected a square; found sizes ", matrix.sizes());
  }
  const Tensor seen = matrix.to(at::kBool).contiguous();
  const int64_t length = seen.size(0);
  const bool* pairs = seen.const_data_ptr<bool>();
  const int64_t side = side_of(length, widest), cells = (length + side - 1) / side;
  const auto digits = static_cast<int64_t>(text(length - 1).size());
  const auto padded = [&](const std::string& label) {
    return std::string(static_cast<size_t>(std::max<int64_t>(digits - static_cast<int64_t>(label.size()), 0)), ' ') +
           label;
  };
  std::string numbers, ticks;  // a label every 8 cells, above its tick
  for (int64_t cell = 0; cell < cells; ++cell) {
    ticks += cell % 8 == 0 ? '|' : ' ';
    if (cell % 8 == 0 && static_cast<int64_t>(numbers.size()) <= cell) {
      numbers += std::string(static_cast<size_t>(cell) - numbers.size(), ' ') + text(cell * side);
    }
  }
  ticks.erase(ticks.find_last_not_of(' ') + 1);
  const std::string margin(static_cast<size_t>(digits) + 2, ' ');
  std::vector<std::string> out{margin + numbers, margin + ticks};
  for (int64_t row = 0; row < cells; ++row) {
    std::string line = padded(text(row * side)) + "  ";
    for (int64_t column = 0; column < cells; ++column) {
      int64_t count = 0, all = 0;
      for (int64_t i = row * side; i < std::min(length, (row + 1) * side); ++i)
        for (int64_t j = column * side; j < std::min(length, (column + 1) * side); ++j, ++all)
          count += pairs[i * length + j];
      line += count == 0 ? '.' : count == all ? '#' : '+';
    }
    out.push_back(line);
  }
  return out;
}

}  // namespace

std::map<std::string, Tensor> drawn_facts(int64_t length) {
  return {{"prefix", at::full({1}, length / 3, at::kLong)},
          {"global", at::tensor({int64_t{0}, length / 2}).unsqueeze(0)}};
}

Tensor draw_matrix(const Pattern& pattern, int64_t length) {
  check_length(length);
  const Tensor at = at::arange(length, at::kLong);
  return pattern.sees(at.unsqueeze(1), at.unsqueeze(0));  // [length, length]
}

Tensor draw_matrix(const std::shared_ptr<const Pattern>& pattern, int64_t length,
                   const std::map<std::string, Tensor>& facts) {
  check_length(length);
  const Tensor at = at::arange(length, at::kLong);
  Tensor seen = fill_in(pattern, facts, 1)->sees(at.view({1, 1, -1, 1}), at.view({1, 1, 1, -1}));
  seen = seen.expand({1, 1, length, length}).reshape({length, length});
  const auto segment = facts.find("segment");
  if (segment == facts.end()) return seen;
  const Tensor document = segment->second.view({-1});
  return seen.logical_and(document.unsqueeze(1).eq(document.unsqueeze(0)));
}

bool shows_structure(const Tensor& matrix, double most) {
  const Tensor seen = matrix.to(at::kBool);
  const auto length = static_cast<double>(seen.size(0));
  const double count = seen.sum().item<double>();
  if (seen.triu(1).any().item<bool>()) return count < length * length;
  return count < most * length * (length + 1) / 2;
}

std::string draw_text(const Pattern& pattern, int64_t length, int64_t widest) {
  return draw_text(draw_matrix(pattern, length), pattern.text() + ": query i (down) sees key j (across)", widest);
}

std::string draw_text(const Tensor& matrix, const std::string& title, int64_t widest) {
  const auto lines = lines_of(matrix, widest);
  std::string out = title + "\n" + legend(side_of(matrix.size(0), widest)) + "\n";
  for (const auto& line : lines) out += line + "\n";
  return out;
}

std::string draw_text(const std::vector<Drawing>& drawings, const std::string& title, int64_t widest, int64_t columns) {
  if (drawings.size() == 1) return draw_text(drawings[0].matrix, drawings[0].title + ": " + title, widest);
  if (drawings.empty()) fail("[draw] expected something to draw; found nothing");
  std::string out;
  for (size_t n = 0; n < drawings.size(); ++n) out += text(n + 1, "  ", drawings[n].title, "\n");
  out += title + "\n" + legend(side_of(drawings[0].matrix.size(0), widest)) + "\n";
  size_t width = 0;
  std::vector<std::vector<std::string>> all;
  for (size_t n = 0; n < drawings.size(); ++n) {
    all.push_back(lines_of(drawings[n].matrix, widest));
    const auto indent = all.back()[1].find('|');
    all.back().insert(all.back().begin(), std::string(indent, ' ') + text(n + 1));
    if (all.back().size() != all[0].size()) fail("[draw] expected pictures of one size; found others");
    for (const auto& line : all.back()) width = std::max(width, line.size());
  }
  const size_t row = std::max<size_t>(1, static_cast<size_t>(columns) / (width + 3));
  for (size_t first = 0; first < all.size(); first += row) {
    out += "\n";
    for (size_t line = 0; line < all[0].size(); ++line) {
      std::string joined;
      for (size_t n = first; n < std::min(all.size(), first + row); ++n) {
        joined.resize((n - first) * (width + 3), ' ');
        joined += all[n][line];
      }
      out += joined + "\n";
    }
  }
  return out;
}

}  // namespace kinfolk
