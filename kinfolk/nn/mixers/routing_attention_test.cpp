#include "kinfolk/nn/mixers/routing_attention.h"

#include <torch/csrc/autograd/autograd.h>

#include "kinfolk/core/errors.h"
#include "kinfolk/reference/routing.h"
#include "tests/support/padding.h"

namespace kinfolk {
namespace {
using namespace testing;

std::shared_ptr<RoutingAttention> make_routing(const std::string& options, int64_t width, int64_t heads,
                                               at::ScalarType type = at::kDouble) {
  Context context;
  context.size.width = width;
  context.size.heads = heads;
  context.size.context = 32;
  context.like = at::TensorOptions().dtype(type);
  context.generator = at::detail::createCPUGenerator(7);
  context.path = "routing";
  Value table = parse_toml(options, "options");
  table.set("kind", "routing");
  auto made = std::dynamic_pointer_cast<RoutingAttention>(registry<Branch>().create(Spec(table), context, "routing"));
  made->eval();
  return made;
}

TEST(RoutingAttention, Golden) {
  for (const auto& one : golden::cases("attention/routing")) {
    const auto& c = one.config;
    const Tensor centroids = one.at("in.centroids");  // [H, K, d]
    const int64_t H = centroids.size(0), K = centroids.size(1), d = centroids.size(2), top = c.at("top");
    const bool causal = c.at("causal").get<bool>(), shared = c.at("shared_qk").get<bool>();
    const double decay = c.at("decay");
    const std::string options =
        text("local = 0\nclusters = ", K, "\ntop = ", top, "\ncausal = ", causal ? "true" : "false", "\ncombine = \"",
             c.at("combine").get<std::string>(), "\"\ndecay = ", decay);
    for (const auto type : {at::kDouble, at::kFloat}) {
      SCOPED_TRACE(text(one.name, " ", type));
      const auto branch = make_routing(options, H * d, H, type);
      branch->centroids.copy_(centroids);
      branch->train();
      const auto leaf = [&](const char* name) { return one.at(name).to(type).set_requires_grad(true); };
      const Tensor q = leaf("in.q"), v = leaf("in.v"), k = shared ? Tensor() : leaf("in.k");
      const int64_t B = q.size(0), L = q.size(2);

      // Who belongs to which centroid, and whom each takes.
      const auto affinities = [&](const Tensor& x) {
        return at::matmul(centroids.to(type), at::layer_norm(x.detach(), {d}).transpose(2, 3));
      };
      const Tensor of_q = affinities(q), of_k = shared ? of_q : affinities(k);
      EXPECT_TRUE(of_q.argmax(2).equal(one.at("out.assign_q")));
      EXPECT_TRUE(of_k.argmax(2).equal(one.at("out.assign_k")));
      GroupPlan plan;
      top_groups(of_q, of_k, sequences_of(B, L, {}, {}), top, plan);
      std::vector<int64_t> asking, asked;
      for (const auto& groups : plan.each) {
        asking.insert(asking.end(), groups.query.begin(), groups.query.end());
        asked.insert(asked.end(), groups.key.begin(), groups.key.end());
      }
      EXPECT_TRUE(at::tensor(asking, at::kLong).view({B, H, K, top}).equal(one.at("out.index_q")));
      EXPECT_TRUE(at::tensor(asked, at::kLong).view({B, H, K, top}).equal(one.at("out.index_k")));

      const Batch batch;
      std::vector<std::function<void()>> updates;
      Pass pass{.batch = batch};
      pass.updates = &updates;
      const Tensor o = branch->read(q, k, v, pass);
      golden::expect_close(o, one.at("out.o"), one, "o");
      (o * one.at("cot.o").to(type)).sum().backward();
      golden::expect_gradient(q.grad(), one.at("grad.in.q"), one, "q");
      golden::expect_gradient(v.grad(), one.at("grad.in.v"), one, "v");
      if (!shared) golden::expect_gradient(k.grad(), one.at("grad.in.k"), one, "k");
      EXPECT_TRUE(branch->centroids.equal(centroids.to(type))) << "not before the step";
      ASSERT_EQ(updates.size(), 1u);
      updates[0]();
      golden::expect_close(branch->centroids, one.at("out.new_centroids"), one, "new_centroids");
    }
  }
}

TEST(RoutingAttention, EqualsTheDefinitionAmongPaddingAndDocuments) {
  const int64_t length = 40, H = 4, d = 4, window = 5;
  const at::NoGradGuard guard;
  Sequence marked{normal({2, length, H * d}, 1)};
  marked.valid = at::rand({2, length}, at::detail::createCPUGenerator(2)) > 0.25;
  marked.document = at::arange(length, at::kLong).ge(at::tensor({11, 30}, at::kLong).unsqueeze(1)).to(at::kLong);
  for (const bool causal : {false, true}) {
    const auto branch =
        make_routing(text("clusters = 3\nwindow = ", window, "\ncausal = ", causal ? "true" : "false"), H * d, H);
    for (const Sequence& s : {marked, Sequence{marked.x}}) {
      const auto heads = [&](const Tensor& x) { return x.unflatten(-1, {-1, d}).transpose(1, 2); };
      const Tensor q = heads(branch->q->forward(s.x)), k = heads(branch->k->forward(s.x)),
                   v = heads(branch->v->forward(s.x));
      Tensor read = at::zeros({2, H, length, d}, real());
      const Sequences sequences = sequences_of(2, length, s.valid, s.document);
      for (int64_t b = 0; b < 2; ++b)
        for (const auto& tokens : sequences[static_cast<size_t>(b)]) {
          const Tensor places = at::tensor(std::vector<int64_t>(tokens.begin(), tokens.end()), at::kLong);
          const int64_t n = places.numel();
          const auto of = [&](const Tensor& t, int64_t h) { return t[b][h].index_select(0, places).contiguous(); };
          for (int64_t h = 0; h < H; ++h) {
            Tensor o;
            if (h < 2) {
              const Tensor apart = at::arange(n, at::kLong).unsqueeze(1) - at::arange(n, at::kLong);
              const Tensor hidden = causal ? apart.lt(0).logical_or(apart.ge(window)) : apart.abs().ge(window);
              const Tensor scores = at::matmul(of(q, h), of(k, h).t()) / std::sqrt(static_cast<double>(d));
              o = at::matmul(at::softmax(scores.masked_fill(hidden, -INFINITY), -1), of(v, h));
            } else {
              o = reference::routing_attention(of(q, h), causal ? of(q, h) : of(k, h), of(v, h),
                                               branch->centroids[h - 2], (n + 2) / 3, causal, true);
            }
            read[b][h].index_copy_(0, places, o);
          }
        }
      Tensor want = branch->out->forward(read.transpose(1, 2).flatten(2));
      if (s.valid.defined()) want.masked_fill_(s.valid.logical_not().unsqueeze(-1), 0);
      EXPECT_LE(distance(run(*branch, s, {length}), want), 1e-12) << causal;
    }
  }
}

TEST(RoutingAttention, PaddingMovesNoTokenWhateverItHolds) {
  for (const std::string choice : {"top", "nearest"}) {
    const auto branch = make_routing("clusters = 3\nwindow = 4\nchoice = \"" + choice + "\"", 16, 4);
    expect_padding_moves_nothing(*branch, normal({1, 21, 16}, 1));
  }
}

TEST(RoutingAttention, OneObjectServesEveryLength) {
  for (const std::string choice : {"top", "nearest"}) {
    const auto branch = make_routing("clusters = 5\nchoice = \"" + choice + "\"", 32, 4, at::kFloat);
    const at::NoGradGuard guard;
    std::map<int64_t, Tensor> first;
    for (const int64_t length : {1000, 1, 2, 63, 65, 129, 32, 16, 48, 1000, 2}) {
      const Tensor out = run(*branch, {normal({1, length, 32}, 3).to(at::kFloat)}, {length});
      EXPECT_TRUE(out.isfinite().all().item<bool>()) << length;
      if (first.count(length)) EXPECT_TRUE(out.equal(first.at(length))) << length;
      first[length] = out;
    }
    EXPECT_EQ(run(*branch, {at::zeros({2, 0, 32})}, {0}).sizes(), (std::vector<int64_t>{2, 0, 32}));
  }
}

TEST(RoutingAttention, AllPaddingIsZeroAndFinite) {
  for (const std::string choice : {"top", "nearest"}) {
    const auto branch = make_routing("clusters = 3\nchoice = \"" + choice + "\"", 16, 4);
    const Outcome empty = run_with_gradients(*branch, {normal({2, 5, 16}, 1), at::zeros({2, 5}, at::kBool)}, {5});
    EXPECT_EQ(empty.out.abs().sum().item<double>(), 0);
    for (const auto& [name, gradient] : empty.gradients) EXPECT_EQ(gradient.abs().sum().item<double>(), 0) << name;
  }
}

TEST(RoutingAttention, WhatIsCausal) {
  const int64_t length = 60, t = 30;
  const Tensor x = normal({1, length, 16}, 1).set_requires_grad(true);
  const Tensor other = at::cat({x.detach().slice(1, 0, t), normal({1, length - t, 16}, 2)}, 1);
  for (const bool exactly : {false, true}) {
    const auto branch = make_routing(text("clusters = 4\nchoice = \"", exactly ? "nearest" : "top", "\""), 16, 4);
    EXPECT_EQ(branch->traits().causal, exactly);
    const Tensor out = run(*branch, {x}, {length});
    const Tensor gradient = torch::autograd::grad({out.slice(1, 0, t).square().sum()}, {x})[0];
    EXPECT_GT(gradient.slice(1, 0, t).abs().sum().item<double>(), 0.1);
    EXPECT_EQ(gradient.slice(1, t).abs().sum().item<double>(), 0) << "no later value is read";
    const double moved = distance(run(*branch, {other}, {length}).slice(1, 0, t), out.slice(1, 0, t));
    if (exactly) {
      EXPECT_LE(moved, 1e-13);
    } else {
      EXPECT_GT(moved, 1e-3) << "later tokens decide whom a centroid takes";
    }
  }
}

TEST(RoutingAttention, EverySplitGivesTheWholeWithItsGradients) {
  const int64_t length = 13;
  const auto branch = make_routing("clusters = 3\ntop = 2\nwindow = 3\nchoice = \"nearest\"", 16, 4);
  EXPECT_TRUE(branch->traits().streams);
  EXPECT_FALSE(make_routing("", 16, 4)->traits().streams);
  Sequence marked{normal({2, length, 16}, 2)};
  marked.valid = at::rand({2, length}, at::detail::createCPUGenerator(2)) > 0.25;
  marked.document = at::arange(length, at::kLong).ge(at::tensor({4, 9}, at::kLong).unsqueeze(1)).to(at::kLong);
  for (const Sequence& s : {Sequence{marked.x}, marked}) {
    const Outcome whole = run_with_gradients(*branch, s, {length});
    for (const auto& calls : splits(length)) expect_same(run_with_gradients(*branch, s, calls), whole, "split");
    const at::NoGradGuard guard;
    EXPECT_LE(distance(run(*branch, s, std::vector<int64_t>(length, 1)), whole.out), 1e-12);
  }
}

TEST(RoutingAttention, CentroidsMoveAfterTheStepInTrainingAlone) {
  const auto branch = make_routing("clusters = 3\nlocal = 0\ndecay = 0.9\nupdate = \"mean\"", 8, 2);
  const Tensor x = normal({2, 20, 8}, 3), before = branch->centroids.clone();
  std::vector<std::function<void()>> updates;
  const Batch batch;
  const auto call = [&](const Tensor& in, const Tensor& valid = {}) {
    Pass pass{.batch = batch};
    pass.position = at::arange(in.size(1), at::kLong).repeat({in.size(0), 1});
    pass.valid = valid;
    pass.updates = &updates;
    return branch->forward(in, pass, nullptr);
  };
  call(x);
  EXPECT_TRUE(updates.empty()) << "evaluation";
  branch->train();
  call(x);
  ASSERT_EQ(updates.size(), 1u);
  EXPECT_TRUE(branch->centroids.equal(before)) << "not yet";
  updates[0]();
  const Tensor q = at::layer_norm(branch->q->forward(x).unflatten(-1, {2, 4}).transpose(1, 2), {4}).detach();
  const Tensor code = at::matmul(before, q.transpose(2, 3)).argmax(2);  // [B, H, L]
  for (int64_t h = 0; h < 2; ++h)
    for (int64_t c = 0; c < 3; ++c) {
      const Tensor mine = q.select(1, h).masked_select(code.select(1, h).eq(c).unsqueeze(-1)).view({-1, 4});
      const Tensor want = mine.size(0) == 0 ? before[h][c] : 0.9 * before[h][c] + 0.1 * mine.mean(0);
      EXPECT_LE(distance(branch->centroids[h][c], want), 1e-12);
    }
  EXPECT_FALSE(branch->centroids.requires_grad());

  // Padding is no part of it, whatever it holds.
  const auto moved_by = [&](double junk) {
    branch->centroids.copy_(before);
    updates.clear();
    const Tensor valid = at::arange(20, at::kLong).lt(at::tensor({20, 7}, at::kLong).unsqueeze(1));
    call(at::where(valid.unsqueeze(-1), x, at::full({}, junk, real())), valid);
    updates.at(0)();
    return branch->centroids.clone();
  };
  EXPECT_TRUE(moved_by(1).equal(moved_by(100)));
  EXPECT_TRUE(moved_by(1).equal(moved_by(std::nan(""))));
}

TEST(RoutingAttention, TheKernelEqualsTheLoopsThroughTheBranch) {
  const std::string options = "clusters = 4\nwindow = 16";
  const auto exact = make_routing(options, 64, 4), single = make_routing(options, 64, 4, at::kFloat);
  const Sequence s{normal({2, 100, 64}, 4)};
  const Outcome want = run_with_gradients(*exact, s, {100});
  const Tensor x = s.x.to(at::kFloat).set_requires_grad(true);
  const Tensor out = run(*single, {x}, {100});
  (out * normal(out.sizes(), 99).to(at::kFloat)).sum().backward();
  EXPECT_LE(distance(out.detach().to(at::kDouble), want.out), 1e-5);
  EXPECT_LE(distance(x.grad().to(at::kDouble), want.gradients.at("x")), 1e-4);
}

TEST(RoutingAttention, RefusesWhatItCannotDo) {
  EXPECT_THROW(make_routing("heads = 3", 16, 4), Error);
  EXPECT_THROW(make_routing("local = 4", 16, 4), Error);
}

}  // namespace
}  // namespace kinfolk
