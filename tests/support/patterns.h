// Random patterns, for tests.
#pragma once
#include <random>
#include <string>

#include "kinfolk/core/errors.h"

namespace kinfolk {

/// Any term, or terms joined to this depth.
inline std::string random_pattern(std::mt19937& draw, int depth) {
  const auto one_of = [&](int64_t low, int64_t high) {
    return text(low + static_cast<int64_t>(draw() % static_cast<unsigned>(high - low + 1)));
  };
  if (depth > 0 && draw() % 3) {
    return "(" + random_pattern(draw, depth - 1) + (draw() % 2 ? " | " : " & ") + random_pattern(draw, depth - 1) + ")";
  }
  switch (draw() % 15) {
    case 0:
      return "causal";
    case 1:
      return "window(" + one_of(1, 9) + ")";
    case 2:
      return "distance(" + one_of(-4, 4) + ", " + one_of(2, 20) + ")";
    case 3:
      return "dilated(" + one_of(1, 4) + ", " + one_of(1, 5) + ")";
    case 4:
      return "stride(" + one_of(1, 7) + ")";
    case 5:
      return "fixed(" + one_of(4, 7) + ", 2, " + one_of(0, 1) + ")";
    case 6:
      return "block_local(" + one_of(1, 6) + ", " + one_of(0, 5) + ")";
    case 7:
      return "block_window(" + one_of(1, 5) + ", " + one_of(0, 2) + ")";
    case 8:
      return "local2d(3, 5, 2, " + one_of(1, 4) + ", 1, 1, " + (draw() % 2 ? "block)" : "raster)");
    case 9:
      return "blocks(" + one_of(2, 4) + ", " + one_of(5, 12) + ", " + one_of(-2, 2) + ")";
    case 10:
      return "columns([" + one_of(0, 3) + ", " + one_of(5, 9) + ":" + one_of(10, 14) + "])";
    case 11:
      return "global(" + one_of(0, 3) + ")";
    case 12:
      return "prefix(" + one_of(0, 8) + ")";
    case 13:
      return "random(" + one_of(1, 4) + ", " + one_of(1, 3) + ", " + one_of(0, 9) + (draw() % 2 ? ")" : ", 24)");
    default:
      return "full";
  }
}

}  // namespace kinfolk
