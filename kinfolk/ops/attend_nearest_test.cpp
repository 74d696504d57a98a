#include "kinfolk/ops/attend_nearest.h"

#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include "kinfolk/core/errors.h"
#include "kinfolk/reference/golden.h"

namespace kinfolk {
namespace {

Tensor drawn(at::IntArrayRef sizes, uint64_t seed, at::ScalarType type = at::kDouble) {
  return at::normal(0, 1, sizes, at::detail::createCPUGenerator(seed), at::TensorOptions().dtype(type));
}

/// All products in double, sorted by (product, slot), without the slots that are not seen.
Tensor by_definition(const Tensor& q, const Tensor& k, const std::vector<SlotRange>& seen, int64_t n) {
  const int64_t B = q.size(0), H = q.size(1), G = k.size(1), C = k.size(2);
  const Tensor keys = k.to(at::kDouble).repeat_interleave(H / G, 1);
  Tensor products = at::matmul(q.to(at::kDouble), keys.transpose(2, 3));  // [B, H, L, C]
  for (int64_t b = 0; b < B; ++b) {
    Tensor hidden = at::ones({C}, at::kBool);
    for (int64_t c = 0; c < seen[b].count; ++c) hidden[(seen[b].first + c) % C] = false;
    products[b].masked_fill_(hidden, -INFINITY);
  }
  const auto [values, order] = products.sort(/*stable=*/true, /*dim=*/-1, /*descending=*/true);
  const Tensor found = order.masked_fill(values.isinf(), -1).slice(3, 0, n);
  return at::constant_pad_nd(found, {0, n - found.size(3)}, -1);
}

TEST(AttendNearest, GoldenMemory) {
  for (const auto& one : golden::cases("attention/memorizing")) {
    const int64_t n = one.config.at("k"), H = one.at("in.q").size(1), C = one.at("in.mem_k").size(2);
    const bool unit = one.config.at("normalise");
    const Tensor q = one.at("in.q"), k = one.at("in.mem_k").set_requires_grad(true),
                 v = one.at("in.mem_v").set_requires_grad(true);
    const auto of_length_one = [&](const Tensor& x) { return unit ? x / x.norm(2, -1, true) : x; };
    const Tensor scale = unit ? one.at("param.log_scale").exp().view({1, H, 1, 1})
                              : at::full({1, H, 1, 1}, 1 / std::sqrt(static_cast<double>(q.size(3))), at::kDouble);
    const std::vector<SlotRange> all(static_cast<size_t>(q.size(0)), SlotRange{0, C});
    const NearestRead read = attend_nearest(of_length_one(q) * scale, of_length_one(k), v, all, n);
    EXPECT_TRUE(read.index.equal(one.at("out.index"))) << one.name;
    golden::expect_close(read.out, one.at("out.memory"), one, "memory");
    // The rest of the row in its own words, so that the gradients of the memory can be compared.
    const Tensor g = at::sigmoid(one.at("param.gate")).view({1, H, 1, 1});
    const Tensor out = g * read.out + (1 - g) * one.at("out.local");
    golden::expect_close(out, one.at("out.o"), one, "o");
    (out * one.at("cot.o")).sum().backward();
    golden::expect_gradient(k.grad(), one.at("grad.in.mem_k"), one, "mem_k");
    golden::expect_gradient(v.grad(), one.at("grad.in.mem_v"), one, "mem_v");
  }
}

TEST(AttendNearest, FindsTheLargestProducts) {
  struct Size {
    int64_t B, H, G, L, C, d, n;
    std::vector<SlotRange> seen;
  };
  const std::vector<Size> sizes{
      {2, 2, 2, 5, 40, 7, 4, {{0, 40}, {35, 12}}},  // going round the end
      {1, 4, 2, 70, 700, 16, 32, {{650, 700}}},     // grouped heads, blocks of keys and queries
      {2, 1, 1, 3, 9, 8, 16, {{0, 0}, {8, 3}}},     // nothing; fewer than wanted
      {1, 2, 1, 150, 1000, 33, 1, {{999, 500}}},    // several tasks, odd width
      {1, 1, 1, 1, 300, 64, 8, {{10, 290}}},        // one query
  };
  for (const auto type : {at::kFloat, at::kDouble})
    for (const Size& s : sizes) {
      const Tensor q = drawn({s.B, s.H, s.L, s.d}, 1, type), k = drawn({s.B, s.G, s.C, s.d}, 2, type);
      const Tensor got = largest_products(q, k, s.seen, s.n), want = by_definition(q, k, s.seen, s.n);
      EXPECT_TRUE(got.eq(-1).equal(want.eq(-1))) << s.C;
      if (type == at::kDouble) EXPECT_TRUE(got.equal(want)) << s.C;
      // Rounding in float may swap two that are as good as equal.
      EXPECT_GT(got.eq(want).to(at::kDouble).mean().item<double>(), 0.999) << s.C;
    }
}

/// The keys found have no smaller products than those that were not, but for rounding in float.
void expect_largest(const Tensor& index, const Tensor& q, const Tensor& k, const std::string& what) {
  const Tensor products = at::matmul(q.to(at::kDouble), k.to(at::kDouble).transpose(2, 3)).nan_to_num(-1e300);
  const Tensor size = q.to(at::kDouble).norm(2, -1) * k.to(at::kDouble).nan_to_num(0).norm(2, -1).amax(-1, true);
  ASSERT_TRUE(index.ge(0).all().item<bool>()) << what;
  const Tensor least = products.gather(3, index).amin(-1);
  const Tensor others = products.scatter(3, index, -1e300).amax(-1);
  EXPECT_LE(((others - least) / (size + 1e-300)).max().item<double>(), 2e-6) << what;
  const Tensor sorted = std::get<0>(index.sort(-1));
  EXPECT_TRUE(sorted.slice(3, 1).ne(sorted.slice(3, 0, -1)).all().item<bool>()) << what << ": a key twice";
}

// Where the machine multiplies bytes, a large search rounds keys to bytes first.
TEST(AttendNearest, LargeSearchesAreExact) {
  for (const int64_t d : {1, 3, 33, 64})
    for (const int64_t rows : {32, 65, 300}) {
      const std::string size = text("d ", d, ", rows ", rows);
      const int64_t C = 2600;
      const Tensor q = drawn({1, 2, rows, d}, 11, at::kFloat), k = drawn({1, 2, C, d}, 12, at::kFloat);
      const auto found = [&](const Tensor& queries, const Tensor& keys) {
        return largest_products(queries, keys, {{700, C}}, 32);
      };
      expect_largest(found(q, k), q, k, size);
      const Tensor unit = k / k.norm(2, -1, true);
      expect_largest(found(q / q.norm(2, -1, true), unit), q / q.norm(2, -1, true), unit, size + ", of length one");
      // Nearly the same key everywhere: bytes tell none from another.
      const Tensor alike = unit.narrow(2, 0, 1) + 1e-4 * k;
      expect_largest(found(q, alike), q, alike, size + ", alike");
      const Tensor lengths = at::pow(10, 3 * drawn({1, 2, C, 1}, 13, at::kFloat));
      expect_largest(found(q, k * lengths), q, k * lengths, size + ", of all lengths");
      for (const double times : {1e-18, 1e-25, 1e18}) {
        expect_largest(found(q, k * times), q, k * times, text(size, ", times ", times));
      }
      Tensor broken = k.clone();
      broken.slice(2, 100, 300).zero_();
      broken.slice(2, 1000, 1003).fill_(std::numeric_limits<float>::quiet_NaN());
      broken.slice(2, 1500, 1700).mul_(1e-38);
      broken.slice(2, 2599).fill_(1e35);
      expect_largest(found(q, broken), q, broken, size + ", broken");
      Tensor odd = q.clone();
      odd.slice(2, 3, 4).zero_();
      odd.slice(2, 4, 5).mul_(1e-36);
      odd.slice(2, 5, 6).mul_(1e25);
      const Tensor of_odd = found(odd, k);
      expect_largest(of_odd, odd, k, size + ", odd queries");
      EXPECT_TRUE(of_odd.slice(2, 3, 4).equal(at::arange(32).expand({1, 2, 1, 32}))) << "all alike: by their slots";
      odd.slice(2, 6, 7).fill_(std::numeric_limits<float>::quiet_NaN());
      const Tensor nothing = found(odd, k);
      EXPECT_TRUE(nothing.slice(2, 6, 7).eq(-1).all().item<bool>());
      EXPECT_TRUE(nothing.slice(2, 7).equal(of_odd.slice(2, 7)));
    }
}

TEST(AttendNearest, EqualProductsComeInTheOrderOfTheirSlots) {
  const Tensor few = drawn({1, 1, 6, 8}, 3, at::kFloat), k = few.repeat({1, 1, 100, 1});  // slot i equals slot i + 6
  for (const int64_t first : {0, 451}) {
    const Tensor index = largest_products(few.slice(2, 0, 5) * 3, k, {{first, 600}}, 50);
    for (int64_t row = 0; row < 5; ++row) {
      const Tensor mine = index[0][0][row];
      EXPECT_TRUE(mine.remainder(6).eq(mine[0].remainder(6)).all().item<bool>());
      EXPECT_TRUE(mine.equal(std::get<0>(mine.sort()))) << mine;
    }
  }
}

TEST(AttendNearest, KeysThatAreNotNumbersAreNeverMet) {
  for (const auto type : {at::kFloat, at::kDouble}) {
    Tensor k = drawn({1, 1, 200, 8}, 4, type);
    k.slice(2, 20, 40).fill_(std::numeric_limits<double>::quiet_NaN());
    const Tensor index = largest_products(drawn({1, 1, 9, 8}, 5, type), k, {{0, 200}}, 200);
    EXPECT_FALSE(index.ge(20).logical_and(index.lt(40)).any().item<bool>());
    EXPECT_TRUE(index.slice(3, 180).eq(-1).all().item<bool>());
  }
}

TEST(AttendNearest, GradientsAreThoseOfAttentionToWhatIsMet) {
  const std::vector<SlotRange> seen{{7, 6}, {0, 0}};
  const Tensor q = drawn({2, 4, 3, 6}, 6).set_requires_grad(true), k = drawn({2, 2, 11, 6}, 7).set_requires_grad(true),
               v = drawn({2, 2, 11, 6}, 8).set_requires_grad(true);
  const NearestRead read = attend_nearest(q, k, v, seen, 4);
  EXPECT_EQ(read.out[1].abs().sum().item<double>(), 0) << "a lane that meets nothing";
  const Tensor cot = drawn(read.out.sizes(), 9);
  const auto got = torch::autograd::grad({(read.out * cot).sum()}, {q, k, v});
  Tensor allowed = at::full({2, 4, 3, 11}, -INFINITY, at::kDouble);
  allowed[0].scatter_(2, read.index[0].clamp_min(0), 0);
  ASSERT_TRUE(read.index[0].ge(0).all().item<bool>());
  const Tensor scores = at::matmul(q, k.repeat_interleave(2, 1).transpose(2, 3)) + allowed;
  const Tensor want = at::matmul(at::softmax(scores[0], -1), v.repeat_interleave(2, 1)[0]);
  EXPECT_LE((read.out[0] - want).abs().max().item<double>(), 1e-14);
  const auto expected = torch::autograd::grad({(want * cot[0]).sum()}, {q, k, v});
  for (size_t i = 0; i < 3; ++i) EXPECT_LE((got[i] - expected[i]).abs().max().item<double>(), 1e-13) << i;
}

TEST(AttendNearest, AllBucketsAreTheWholeSearch) {
  for (const auto type : {at::kFloat, at::kDouble}) {
    const Tensor q = drawn({2, 2, 40, 8}, 10, type), k = drawn({2, 2, 300, 8}, 11, type);
    Buckets buckets;
    buckets.code = at::randint(0, 7, {2, 2, 300}, at::detail::createCPUGenerator(12), at::kInt);
    buckets.centre = drawn({2, 2, 7, 8}, 13, type);
    buckets.probes = 7;
    const std::vector<SlotRange> seen{{250, 120}, {0, 300}};
    const Tensor want = by_definition(q, k, seen, 9);
    const auto same = [&](const Tensor& got) { return got.eq(want).to(at::kDouble).mean().item<double>(); };
    EXPECT_GT(same(largest_products(q, k, seen, 9, &buckets)), 0.999);
    buckets.probes = 2;
    EXPECT_LT(same(largest_products(q, k, seen, 9, &buckets)), 0.9) << "two of seven buckets, which are no use here";
    buckets.ready = {false, false};
    EXPECT_GT(same(largest_products(q, k, seen, 9, &buckets)), 0.999) << "not sorted yet";
  }
}

TEST(AttendNearest, RefusesWhatDoesNotFit) {
  const Tensor q = at::zeros({1, 2, 3, 4}), k = at::zeros({1, 2, 5, 4});
  EXPECT_THROW(largest_products(q, at::zeros({1, 2, 5, 3}), {{0, 5}}, 1), Error);
  EXPECT_THROW(largest_products(q, k, {{0, 6}}, 1), Error);
  EXPECT_THROW(largest_products(q, k, {{5, 1}}, 1), Error);
  EXPECT_THROW(largest_products(q, k, {{0, 5}}, 0), Error);
  EXPECT_THROW(largest_products(q, k, {}, 1), Error);
}

}  // namespace
}  // namespace kinfolk
