#include "kinfolk/ops/attend_groups.h"

#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include "kinfolk/core/errors.h"
#include "kinfolk/ops/angular_hash.h"
#include "kinfolk/reference/lsh.h"
#include "kinfolk/reference/routing.h"

namespace kinfolk {
namespace {

at::TensorOptions real() { return at::TensorOptions().dtype(at::kDouble); }
Tensor normal(at::IntArrayRef sizes, uint64_t seed) {
  return at::normal(0, 1, sizes, at::detail::createCPUGenerator(seed), real());
}
Tensor codes(at::IntArrayRef sizes, int64_t many, uint64_t seed) {
  return at::randint(many, sizes, at::detail::createCPUGenerator(seed), at::kLong);
}
double apart(const Tensor& a, const Tensor& b) {
  if (a.sizes() != b.sizes()) return INFINITY;
  const double d = a.numel() ? (a.to(at::kDouble) - b).abs().max().item<double>() : 0;
  return std::isnan(d) ? INFINITY : d / std::max(1.0, b.numel() ? b.abs().max().item<double>() : 0);
}
Sequences whole(int64_t batch, int64_t length) { return sequences_of(batch, length, {}, {}); }

struct Results {
  Tensor out, dq, dk, dv;
};
Results run(const Tensor& q, const Tensor& k, const Tensor& v, const std::shared_ptr<GroupPlan>& plan,
            at::ScalarType type) {
  const auto leaf = [&](const Tensor& x) { return x.to(type).clone().set_requires_grad(true); };
  const Tensor a = leaf(q), b = leaf(k), c = leaf(v);
  const Tensor out = attend_groups(a, b, c, plan).out;
  const auto grads = torch::autograd::grad({(out * normal(out.sizes(), 5).to(type)).sum()}, {a, b, c});
  return {out.detach(), grads[0], grads[1], grads[2]};
}

struct Case {
  Cut cut;
  int64_t rounds, codes;
  bool causal, once;
};
std::vector<Case> cases() {
  using Wrap = Cut::Wrap;
  return {{{.chunk = 64}, 2, 3, true, true},
          {{.chunk = 5}, 3, 4, true, true},
          {{.chunk = 5}, 3, 4, false, false},
          {{.chunk = 7, .same = false, .wrap = Wrap::round}, 2, 6, false, true},
          {{.chunk = 7, .same = false, .wrap = Wrap::all}, 3, 6, true, true},
          {{.chunk = 7, .same = false, .wrap = Wrap::all}, 3, 6, false, true},
          {{.chunk = 4, .same = false, .wrap = Wrap::all}, 2, 6, false, false},
          {{.chunk = 6, .wrap = Wrap::round}, 2, 1, false, true},
          {{.chunk = 200}, 1, 2, true, true}};
}

TEST(AttendGroups, EqualsTheDefinitionWithItsGradients) {
  for (const int64_t N : {1, 2, 4, 13, 28, 33}) {
    for (size_t n = 0; n < cases().size(); ++n) {
      const Case one = cases()[n];
      if (one.cut.chunk == 64) continue;
      SCOPED_TRACE(::testing::Message() << "case " << n << ", length " << N);
      const Tensor qk = normal({1, 1, N, 6}, 1).set_requires_grad(true), v = normal({1, 1, N, 4}, 2);
      const Tensor values = v.clone().set_requires_grad(true);
      const Tensor code = codes({1, 1, one.rounds, N}, one.codes, 3 + n);
      const auto plan = std::make_shared<GroupPlan>();
      plan->causal = one.causal, plan->own = false, plan->once = one.once;
      sort_groups(code, whole(1, N), one.cut, *plan);
      const GroupRead read = attend_groups(qk, qk / qk.square().sum(-1, true).sqrt(), values, plan);
      const Tensor got = at::where(read.lse.isneginf().unsqueeze(-1), values, read.out)[0][0];
      const reference::Lsh o{one.cut.chunk, one.causal, one.cut.same, one.once,
                             one.cut.wrap == Cut::Wrap::none    ? "none"
                             : one.cut.wrap == Cut::Wrap::round ? "round"
                                                                : "all"};
      const Tensor want = reference::lsh_attention(qk[0][0], values[0][0], code[0][0], o);
      EXPECT_LE(apart(got, want), 1e-12);
      const Tensor weight = normal(want.sizes(), 9);
      const auto a = torch::autograd::grad({(got * weight).sum()}, {qk, values}, {}, false, false, true),
                 b = torch::autograd::grad({(want * weight).sum()}, {qk, values});
      if (N > 1) EXPECT_LE(apart(a[0], b[0]), 1e-11);
      EXPECT_LE(apart(a[1], b[1]), 1e-11);
    }
  }
}

TEST(AttendGroups, TheKernelEqualsTheLoopsAtLengthsThatDivideNothing) {
  for (const int64_t N : {1, 2, 63, 65, 129, 300}) {
    for (size_t n = 0; n < cases().size(); ++n) {
      const Case one = cases()[n];
      SCOPED_TRACE(::testing::Message() << "case " << n << ", length " << N);
      const int64_t d = n % 2 ? 20 : 16, e = n % 3 ? 24 : 7;
      const Tensor q = normal({2, 2, N, d}, 1), k = normal({2, 2, N, d}, 2), v = normal({2, 2, N, e}, 3);
      const auto plan = std::make_shared<GroupPlan>();
      plan->causal = one.causal, plan->own = n % 2 == 0, plan->once = one.once;
      sort_groups(codes({2, 2, one.rounds, N}, one.codes, 4), whole(2, N), one.cut, *plan);
      const Results want = run(q, k, v, plan, at::kDouble), got = run(q, k, v, plan, at::kFloat);
      EXPECT_LE(apart(got.out, want.out), 1e-5);
      EXPECT_LE(apart(got.dq, want.dq), 1e-5);
      EXPECT_LE(apart(got.dk, want.dk), 1e-5);
      EXPECT_LE(apart(got.dv, want.dv), 1e-5);
    }
  }
}

TEST(AttendGroups, GradientsEqualFiniteDifferences) {
  const auto plan = std::make_shared<GroupPlan>();
  plan->own = false, plan->once = true;
  sort_groups(codes({1, 2, 2, 11}, 3, 4), whole(1, 11), {.chunk = 4}, *plan);
  const Tensor q = normal({1, 2, 11, 3}, 1), k = normal({1, 2, 11, 3}, 2), v = normal({1, 2, 11, 3}, 3);
  const Results at = run(q, k, v, plan, at::kDouble);
  const auto value = [&](const Tensor& a, const Tensor& b, const Tensor& c) {
    const Tensor out = attend_groups(a, b, c, plan).out;
    return (out * normal(out.sizes(), 5)).sum().item<double>();
  };
  const Tensor direction = normal(q.sizes(), 8) * 1e-6;
  const auto expect = [&](double up, double down, const Tensor& gradient) {
    EXPECT_NEAR((up - down) / 2, (gradient * direction).sum().item<double>(), 1e-13);
  };
  expect(value(q + direction, k, v), value(q - direction, k, v), at.dq);
  expect(value(q, k + direction, v), value(q, k - direction, v), at.dk);
  expect(value(q, k, v + direction), value(q, k, v - direction), at.dv);
}

// The README of the article's code cuts by the padded length; here padding is nowhere in the lists.
TEST(AttendGroups, SequencesAreCutAsIfTheyWereAlone) {
  const int64_t N = 40;
  const Tensor valid = at::rand({2, N}, at::detail::createCPUGenerator(2)) > 0.3;
  const Tensor document = at::arange(N, at::kLong).ge(17).to(at::kLong).repeat({2, 1});
  const Tensor q = normal({2, 1, N, 5}, 1), v = normal({2, 1, N, 5}, 3), code = codes({2, 1, 2, N}, 4, 4);
  for (const bool by_code : {false, true}) {
    const auto plan = std::make_shared<GroupPlan>();
    plan->own = false, plan->once = true;
    sort_groups(code, sequences_of(2, N, valid, document), {.chunk = 3, .by_code = by_code}, *plan);
    const Tensor out = attend_groups(q, q, v, plan).out;
    for (int64_t b = 0; b < 2; ++b)
      for (int64_t part = 0; part < 2; ++part) {
        const Tensor places = valid[b].logical_and(document[b].eq(part)).nonzero().squeeze(1);
        const auto of = [&](const Tensor& x, int64_t dim) { return x.slice(0, b, b + 1).index_select(dim, places); };
        const auto alone = std::make_shared<GroupPlan>();
        alone->own = false, alone->once = true;
        sort_groups(of(code, 3), whole(1, places.numel()), {.chunk = 3, .by_code = by_code}, *alone);
        EXPECT_TRUE(attend_groups(of(q, 2), of(q, 2), of(v, 2), alone).out.equal(of(out, 2)));
      }
    EXPECT_EQ(out.masked_select(valid.logical_not().view({2, 1, N, 1})).abs().sum().item<double>(), 0);
  }
}

TEST(AttendGroups, ChunksWithinACodeAreMovedByNoLaterToken) {
  const int64_t N = 50;
  const Tensor q = normal({1, 1, N, 5}, 1), v = normal({1, 1, N, 5}, 3), code = codes({1, 1, 2, N}, 4, 4);
  const auto out_of = [&](bool by_code, int64_t length) {
    const auto plan = std::make_shared<GroupPlan>();
    plan->own = false, plan->once = true;
    const auto part = [&](const Tensor& x, int64_t dim) { return x.narrow(dim, 0, length); };
    sort_groups(part(code, 3), whole(1, length), {.chunk = 3, .by_code = by_code}, *plan);
    return attend_groups(part(q, 2), part(q, 2), part(v, 2), plan).out;
  };
  for (int64_t t = 1; t < N; ++t) EXPECT_TRUE(out_of(true, t).equal(out_of(true, N).narrow(2, 0, t))) << t;
  int64_t moved = 0;
  for (int64_t t = 1; t < N; ++t) moved += !out_of(false, t).equal(out_of(false, N).narrow(2, 0, t));
  EXPECT_GT(moved, N / 2) << "of the published chunks this is not so";
}

TEST(AttendGroups, CentroidsTakeTheNearest) {
  const int64_t N = 17, d = 6, K = 4;
  for (const bool causal : {false, true})
    for (const bool mean : {false, true})
      for (const int64_t top : {0, 1, 3, 40}) {
        const Tensor q = normal({1, 2, N, d}, 1).set_requires_grad(true),
                     k = normal({1, 2, N, d}, 2).set_requires_grad(true),
                     v = normal({1, 2, N, 3}, 3).set_requires_grad(true), centroids = normal({2, K, d}, 4);
        const Tensor a = at::layer_norm(q, {d}), b = at::layer_norm(k, {d});
        const auto plan = std::make_shared<GroupPlan>();
        plan->causal = causal;
        const auto affinities = [&](const Tensor& x) { return at::matmul(centroids, x.detach().transpose(2, 3)); };
        top_groups(affinities(a), affinities(b), whole(1, N), top, *plan);
        const Tensor got = combine_groups(attend_groups(a, b, v, plan).out, *plan, mean);
        std::vector<Tensor> each;
        for (int64_t h = 0; h < 2; ++h) {
          each.push_back(reference::routing_attention(q[0][h], k[0][h], v[0][h], centroids[h],
                                                      top ? top : (N + K - 1) / K, causal, mean));
        }
        const Tensor want = at::stack(each).unsqueeze(0), weight = normal(want.sizes(), 9);
        EXPECT_LE(apart(got, want), 1e-12);
        const auto x = torch::autograd::grad({(got * weight).sum()}, {q, k, v}),
                   y = torch::autograd::grad({(want * weight).sum()}, {q, k, v});
        for (size_t i = 0; i < 3; ++i) EXPECT_LE(apart(x[i], y[i]), 1e-11) << i;
      }
}

TEST(AttendGroups, OfEquallyNearTokensTheEarlierAreTaken) {
  const int64_t N = 5000;
  const Tensor even = normal({1, 1, 1, N}, 4), ties = (even * 3).round(), far = even.clone();
  far.view({-1})[77] = 1e30;  // all others in one range
  const Tensor lost = at::full_like(even, std::nan(""));
  for (const auto& [name, given] : {std::pair{"even", even},
                                    {"ties", ties},
                                    {"far", far},
                                    {"equal", at::ones_like(even)},
                                    {"infinite", far * 1e300},
                                    {"lost", lost}})
    for (const auto type : {at::kFloat, at::kDouble})
      for (const int64_t top : {1, 100, 4999}) {
        const Tensor affinity = given.to(type);
        GroupPlan plan;
        top_groups(affinity, affinity, whole(1, N), top, plan);
        const TokenGroups& got = plan.each[0];
        ASSERT_EQ(got.groups[0].queries, static_cast<int32_t>(got.query.size()));
        if (std::string(name) == "lost") continue;  // any, as long as the lists are whole
        const Tensor order = std::get<1>(at::sort(affinity.view({-1}), true, 0, true)).narrow(0, 0, top);
        const Tensor want = std::get<0>(at::sort(order));
        EXPECT_TRUE(at::tensor(got.query).to(at::kLong).equal(want)) << name << " " << type << " " << top;
      }
}

TEST(AttendGroups, LargeGroupsGoInTiles) {
  // Groups of 150 to 400 tokens: several tiles of queries and of keys.
  const int64_t N = 1000, d = 16;
  const Tensor q = normal({1, 1, N, d}, 1), k = normal({1, 1, N, d}, 2), v = normal({1, 1, N, d}, 3);
  for (const bool causal : {false, true}) {
    const auto plan = std::make_shared<GroupPlan>();
    plan->causal = causal;
    top_groups(normal({1, 1, 3, N}, 4), normal({1, 1, 3, N}, 5), whole(1, N), 400, *plan);
    const Results want = run(q, k, v, plan, at::kDouble), got = run(q, k, v, plan, at::kFloat);
    EXPECT_LE(apart(got.out, want.out), 1e-5);
    EXPECT_LE(apart(got.dq, want.dq), 1e-5);
    EXPECT_LE(apart(got.dk, want.dk), 1e-5);
    EXPECT_LE(apart(got.dv, want.dv), 1e-5);
  }
}

TEST(AngularHash, EqualsTheDefinition) {
  const int64_t N = 600, d = 7;
  const Tensor x = normal({2, 2, N, d}, 1), rotations = normal({2, 3, 1, d, 4}, 2);
  const Tensor valid = at::ones({2, N}, at::kBool);
  valid[1].slice(0, 3, 50, 2).fill_(false);
  const Tensor code = angular_hash(x, rotations, sequences_of(2, N, valid, {}), [](int64_t) { return 8; });
  const Tensor fewer = angular_hash(x, rotations, sequences_of(2, N, valid, {}), [](int64_t) { return 4; });
  for (int64_t b = 0; b < 2; ++b)
    for (int64_t h = 0; h < 2; ++h) {
      const Tensor want = reference::lsh_buckets(x[b][h], rotations[h].select(1, 0)),
                   of_fewer = reference::lsh_buckets(x[b][h], rotations[h].select(1, 0).narrow(2, 0, 2).contiguous());
      EXPECT_TRUE(code[b][h].equal(want.masked_fill(valid[b].logical_not(), 0)));
      EXPECT_TRUE(fewer[b][h].equal(of_fewer.masked_fill(valid[b].logical_not(), 0)));
    }
}

TEST(AngularHash, ManyBucketsAreTwoHashes) {
  const int64_t N = 30, d = 5;
  const Tensor x = normal({1, 1, N, d}, 1), rotations = normal({1, 2, 2, d, 4}, 2);
  const Tensor code = angular_hash(x, rotations, whole(1, N), [](int64_t) { return 32; });
  const Tensor one = reference::lsh_buckets(x[0][0], rotations[0].select(1, 0)),
               two = reference::lsh_buckets(x[0][0], rotations[0].select(1, 1).narrow(2, 0, 2).contiguous());
  EXPECT_TRUE(code[0][0].equal(one + 8 * two));
  EXPECT_GT(two.max().item<int64_t>(), 0);
  for (const int64_t wrong : {0, 1, 7, 12, 128})
    EXPECT_THROW(angular_hash(x, rotations, whole(1, N), [&](int64_t) { return wrong; }), Error) << wrong;
}

TEST(AttendGroups, RefusesWhatItCannotDo) {
  GroupPlan plan;
  EXPECT_THROW(sort_groups(at::zeros({1, 1, 17, 4}, at::kLong), whole(1, 4), {}, plan), Error);
  EXPECT_THROW(sort_groups(at::zeros({1, 1, 1, 4}), whole(1, 4), {}, plan), Error);
  EXPECT_THROW(sort_groups(at::zeros({1, 1, 1, 4}, at::kLong), whole(1, 4), {.chunk = 0}, plan), Error);
  EXPECT_THROW(sort_groups(at::full({1, 1, 1, 4}, -1, at::kLong), whole(1, 4), {}, plan), Error);
  const Tensor x = normal({1, 1, 4, 2}, 1);
  EXPECT_THROW(attend_groups(x, x, x, nullptr), Error);
  const auto fine = std::make_shared<GroupPlan>();
  sort_groups(at::zeros({1, 1, 1, 4}, at::kLong), whole(1, 4), {}, *fine);
  EXPECT_THROW(attend_groups(x, normal({1, 1, 5, 2}, 1), x, fine), Error);
  EXPECT_NO_THROW(attend_groups(x, x, x, fine));
}

}  // namespace
}  // namespace kinfolk
