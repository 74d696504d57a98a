#include "kinfolk/ops/nearest.h"

#include <ATen/TensorIndexing.h>
#include <gtest/gtest.h>

#include "kinfolk/core/errors.h"

namespace kinfolk {
namespace {

/// All distances in double, sorted by (distance, index).
Nearest by_definition(const Tensor& q, const Tensor& keys, int64_t k) {
  const Tensor d = (q.to(at::kDouble).unsqueeze(1) - keys.to(at::kDouble).unsqueeze(0)).square().sum(-1);  // [M, N]
  const auto sorted = d.sort(/*stable=*/true, /*dim=*/-1, /*descending=*/false);
  return {std::get<1>(sorted).narrow(1, 0, k), std::get<0>(sorted).narrow(1, 0, k).to(at::kFloat)};
}

TEST(Nearest, EqualsTheDefinition) {
  at::manual_seed(1);
  // Rows and columns beyond a block, keys far from the origin (where the expanded square cancels), k = 1 and all.
  for (const auto& [m, n, d, k] :
       std::vector<std::array<int64_t, 4>>{{7, 50, 3, 1}, {300, 5000, 8, 20}, {3, 40, 16, 40}}) {
    for (const double offset : {0.0, 100.0}) {
      const Tensor q = at::randn({m, d}) + offset, keys = at::randn({n, d}) + offset;
      const Nearest got = nearest(q, keys, k), want = by_definition(q, keys, k);
      EXPECT_TRUE(at::allclose(got.distance, want.distance, 1e-6, 1e-6)) << m << " " << n << " offset " << offset;
      EXPECT_GT((got.index == want.index).to(at::kDouble).mean().item<double>(), 0.9999) << offset;
    }
  }
}

// Where the machine multiplies bytes, a large search rounds to bytes first.
TEST(Nearest, LargeSearchesAreExact) {
  at::manual_seed(3);
  const int64_t n = 1500, k = 20;
  for (const int64_t d : {1, 35})
    for (const int64_t m : {33, 70}) {
      const Tensor q = at::randn({m, d}), keys = at::randn({n, d});
      const auto expect_right = [&](const Tensor& queries, const Tensor& among, const std::string& what) {
        const Nearest got = nearest(queries, among, k), want = by_definition(queries, among, k);
        EXPECT_TRUE(at::allclose(got.distance, want.distance, 1e-6, 1e-30)) << what << ", " << d << ", " << m;
        // Several keys may be equally near in float32.
        const Tensor own = (queries.to(at::kDouble).unsqueeze(1) - among.to(at::kDouble).index({got.index})).square();
        EXPECT_TRUE(at::allclose(own.sum(-1).to(at::kFloat), want.distance, 1e-6, 1e-30)) << what << ", " << d;
        const Tensor sorted = std::get<0>(got.index.sort(-1));
        EXPECT_TRUE(sorted.slice(1, 1).gt(sorted.slice(1, 0, -1)).all().item<bool>()) << what << ": a key twice";
      };
      expect_right(q, keys, "as drawn");
      expect_right(q + 100, keys + 100, "far from the origin");
      expect_right(q, keys + 100, "far from the queries");
      expect_right(keys.slice(0, 0, m), keys, "the keys themselves");
      expect_right(q, keys.slice(0, 0, 1) + 1e-3 * keys, "alike");
      expect_right(q, keys * at::pow(10, 2 * at::randn({n, 1})), "of all lengths");
      for (const double times : {1e-12, 1e12}) expect_right(q * times, keys * times, "small or large");
      Tensor odd = q.clone(), broken = keys.clone();
      odd.slice(0, 3, 4).zero_(), odd.slice(0, 4, 5).mul_(1e9);
      broken.slice(0, 100, 300).zero_();
      broken.slice(0, n - 1).fill_(1e9);
      expect_right(odd, broken, "odd");
    }
}

TEST(Nearest, BlocksAfterOneAnotherAreTheWhole) {
  at::manual_seed(4);
  const Tensor keys = at::randn({7000, 16});
  for (const int64_t m : {3, 70}) {
    const Tensor q = at::randn({m, 16});
    for (const int64_t k : {1, 50}) {
      NearestSoFar best(q, k);
      for (const auto& [from, until] : std::vector<std::array<int64_t, 2>>{{0, 1500}, {1500, 1510}, {1510, 7000}}) {
        best.meet(keys.slice(0, from, until), from);
      }
      const Nearest got = best.found(), want = nearest(q, keys, k);
      EXPECT_TRUE(got.index.equal(want.index)) << m << " " << k;
      EXPECT_TRUE(got.distance.equal(want.distance)) << m << " " << k;
    }
  }
}

TEST(Nearest, EquallyNearKeysComeInTheOrderOfTheirIndex) {
  at::manual_seed(2);
  const Tensor few = at::randn({5, 4});
  const Tensor keys = few.repeat({2000, 1});  // key i equals key i + 5
  const Tensor got = nearest(few, keys, 100).index;
  for (int64_t row = 0; row < 5; ++row) EXPECT_TRUE(got[row].equal(at::arange(100) * 5 + row)) << row;
  EXPECT_TRUE(nearest(few, keys, 100).index.equal(got));
  const Tensor many = nearest(few.repeat({20, 1}), keys, 100).index;
  for (int64_t row = 0; row < 100; ++row) EXPECT_TRUE(many[row].equal(at::arange(100) * 5 + row % 5)) << row;
}

TEST(Nearest, FewerKeysThanWanted) {
  const Tensor keys = at::eye(3);
  const Nearest got = nearest(at::zeros({2, 3}), keys, 5);
  EXPECT_TRUE(got.index.equal(at::tensor({0, 1, 2, -1, -1}, at::kLong).expand({2, 5})));
  EXPECT_TRUE(got.distance.narrow(1, 3, 2).isinf().all().item<bool>());
  EXPECT_TRUE(nearest(at::zeros({2, 3}), at::zeros({0, 3}), 2).index.equal(at::full({2, 2}, -1, at::kLong)));
  EXPECT_EQ(nearest(at::zeros({0, 3}), keys, 2).index.size(0), 0);
}

TEST(Nearest, KeysThatAreNotNumbersAreNeverFound) {
  Tensor keys = at::randn({100, 4});
  keys.narrow(0, 10, 5).fill_(std::numeric_limits<float>::quiet_NaN());
  const Tensor index = nearest(at::randn({6, 4}), keys, 100).index;
  EXPECT_FALSE(index.ge(10).logical_and(index.lt(15)).any().item<bool>());
  EXPECT_TRUE(index.narrow(1, 95, 5).eq(-1).all().item<bool>());
  const Tensor of_many = nearest(at::randn({60, 4}), keys.repeat({20, 1}), 2000).index;
  EXPECT_TRUE(of_many.narrow(1, 1900, 100).eq(-1).all().item<bool>());
  EXPECT_FALSE(of_many.remainder(100).ge(10).logical_and(of_many.remainder(100).lt(15)).any().item<bool>());
}

TEST(Nearest, RefusesWhatDoesNotFit) {
  EXPECT_THROW(nearest(at::zeros({2, 3}), at::zeros({2, 4}), 1), Error);
  EXPECT_THROW(nearest(at::zeros({2, 3}), at::zeros({2, 3}), 0), Error);
}

}  // namespace
}  // namespace kinfolk
