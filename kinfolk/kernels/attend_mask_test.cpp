#include "kinfolk/kernels/attend_mask.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <vector>

namespace kinfolk {
namespace {

struct Side {
  std::vector<int64_t> q_at, k_at, q_document, k_document, from, until;
};

template <class T>
void expect_meaning(const Side& side, int64_t nearest, int64_t farthest, const std::vector<T>& table, int64_t lowest) {
  const auto rows = static_cast<int64_t>(side.q_at.size()), columns = static_cast<int64_t>(side.k_at.size());
  const auto pointer = [](const std::vector<int64_t>& x) { return x.empty() ? nullptr : x.data(); };
  AttendMask<T> mask;
  mask.q_at = side.q_at.data(), mask.k_at = side.k_at.data();
  mask.q_document = pointer(side.q_document), mask.k_document = pointer(side.k_document);
  mask.from = pointer(side.from), mask.until = pointer(side.until);
  mask.rows = rows, mask.columns = columns, mask.nearest = nearest, mask.farthest = farthest;
  mask.table = table.empty() ? nullptr : table.data(), mask.lowest = lowest;
  const int64_t stride = columns + 3;
  std::vector<T> out(static_cast<size_t>(rows * stride), T(7));
  std::vector<uint8_t> seen(static_cast<size_t>(rows), 0);
  fill_attend_mask(mask, out.data(), stride, seen.data());
  for (int64_t r = 0; r < rows; ++r) {
    bool any = false;
    for (int64_t c = 0; c < stride; ++c) {
      const T got = out[static_cast<size_t>(r * stride + c)];
      if (c >= columns) {
        EXPECT_EQ(got, T(7)) << "written beyond the row";
        continue;
      }
      const int64_t i = side.q_at[static_cast<size_t>(r)], j = side.k_at[static_cast<size_t>(c)];
      bool see = i >= 0 && j >= 0 && i - j >= nearest && i - j <= farthest;
      if (mask.q_document) see = see && mask.q_document[r] == mask.k_document[c];
      if (mask.from) see = see && j >= mask.from[r];
      if (mask.until) see = see && j < mask.until[r];
      any = any || see;
      EXPECT_EQ(got, see ? (table.empty() ? T(0) : table[static_cast<size_t>(i - j - lowest)]) : T(-INFINITY));
    }
    EXPECT_EQ(seen[static_cast<size_t>(r)], any);
  }
}

template <class T>
void expect_random() {
  std::mt19937_64 random(5);
  const auto pick = [&](int64_t low, int64_t high) { return low + static_cast<int64_t>(random() % (high - low + 1)); };
  std::vector<T> table(400);
  for (size_t n = 0; n < table.size(); ++n) table[n] = static_cast<T>(n) + T(0.5);
  for (int round = 0; round < 300; ++round) {
    Side side;
    const bool straight = pick(0, 1);
    const auto fill = [&](std::vector<int64_t>& x, int64_t n, int64_t low, int64_t high) {
      for (int64_t i = 0; i < n; ++i) x.push_back(pick(low, high));
    };
    const int64_t rows = pick(1, 9), columns = pick(0, 20), q0 = pick(0, 40), k0 = pick(0, 40);
    if (straight) {
      for (int64_t i = 0; i < rows; ++i) side.q_at.push_back(q0 + i);
      for (int64_t i = 0; i < columns; ++i) side.k_at.push_back(k0 + i);
    } else {
      fill(side.q_at, rows, -1, 60), fill(side.k_at, columns, -1, 60);
    }
    if (pick(0, 3) == 0) fill(side.q_document, rows, 0, 2), fill(side.k_document, columns, 0, 2);
    if (side.k_document.empty()) side.q_document.clear();
    if (pick(0, 3) == 0) fill(side.from, rows, -5, 60);
    if (pick(0, 3) == 0) fill(side.until, rows, 0, 70);
    const int64_t nearest = pick(0, 2) ? pick(-60, 20) : INT64_MIN, farthest = pick(0, 2) ? pick(-20, 60) : INT64_MAX;
    expect_meaning<T>(side, nearest, farthest, pick(0, 1) ? table : std::vector<T>(), -200);
  }
}

TEST(AttendMask, IsItsMeaningInFloat) { expect_random<float>(); }
TEST(AttendMask, IsItsMeaningInDouble) { expect_random<double>(); }

TEST(AttendMask, Consecutive) {
  const std::vector<int64_t> a = {3, 4, 5}, b = {3, 5, 6}, c = {-1, 0, 1}, d = {4, 5, -1};
  EXPECT_TRUE(consecutive(a.data(), 3));
  EXPECT_FALSE(consecutive(b.data(), 3));
  EXPECT_FALSE(consecutive(c.data(), 3));
  EXPECT_FALSE(consecutive(d.data(), 3));
  EXPECT_TRUE(consecutive(nullptr, 0));
}

}  // namespace
}  // namespace kinfolk
