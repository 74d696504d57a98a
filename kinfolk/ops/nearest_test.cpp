#include "kinfolk/ops/nearest.h"

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

TEST(Nearest, EquallyNearKeysComeInTheOrderOfTheirIndex) {
  at::manual_seed(2);
  const Tensor few = at::randn({5, 4});
  const Tensor keys = few.repeat({2000, 1});  // key i equals key i + 5
  const Tensor got = nearest(few, keys, 100).index;
  for (int64_t row = 0; row < 5; ++row) EXPECT_TRUE(got[row].equal(at::arange(100) * 5 + row)) << row;
  EXPECT_TRUE(nearest(few, keys, 100).index.equal(got));
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
}

TEST(Nearest, RefusesWhatDoesNotFit) {
  EXPECT_THROW(nearest(at::zeros({2, 3}), at::zeros({2, 4}), 1), Error);
  EXPECT_THROW(nearest(at::zeros({2, 3}), at::zeros({2, 3}), 0), Error);
}

}  // namespace
}  // namespace kinfolk
