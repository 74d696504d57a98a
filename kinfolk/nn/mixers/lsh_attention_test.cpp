#include "kinfolk/nn/mixers/lsh_attention.h"

#include <torch/csrc/autograd/autograd.h>

#include "kinfolk/core/errors.h"
#include "kinfolk/ops/angular_hash.h"
#include "kinfolk/reference/lsh.h"
#include "tests/support/padding.h"

namespace kinfolk {
namespace {
using namespace testing;

std::shared_ptr<LshAttention> make_lsh(const std::string& options, int64_t width, int64_t heads,
                                       at::ScalarType type = at::kDouble, uint64_t seed = 7) {
  Context context;
  context.size.width = width;
  context.size.heads = heads;
  context.size.context = 32;
  context.like = at::TensorOptions().dtype(type);
  context.generator = at::detail::createCPUGenerator(seed);
  context.path = "lsh";
  Value table = parse_toml(options, "options");
  table.set("kind", "lsh");
  auto made = std::dynamic_pointer_cast<LshAttention>(registry<Branch>().create(Spec(table), context, "lsh"));
  made->eval();
  return made;
}

TEST(LshAttention, Golden) {
  for (const auto& one : golden::cases("attention/reformer_lsh")) {
    const auto& c = one.config;
    const Tensor rotations = one.at("in.rotations");  // [H, R, d, n/2]
    const int64_t H = rotations.size(0), R = rotations.size(1), d = rotations.size(2);
    const auto flag = [&](const char* name) { return c.at(name).get<bool>() ? "true" : "false"; };
    const std::string options = text(
        "rounds = ", R, "\nchunk = ", c.at("chunk").get<int64_t>(),
        "\nbucket_count = ", c.at("n_buckets").get<int64_t>(), "\nbuckets = \"", c.at("buckets").get<std::string>(),
        "\"\nwrap = \"", c.at("wrap").get<std::string>(), "\"\ncausal = ", flag("causal"), "\ndedup = ", flag("dedup"));
    for (const auto type : {at::kDouble, at::kFloat}) {
      SCOPED_TRACE(text(one.name, " ", type));
      const auto branch = make_lsh(options, H * d, H, type);
      branch->rotations.copy_(rotations.unsqueeze(2));
      const Tensor qk = one.at("in.qk").to(type).set_requires_grad(true),
                   v = one.at("in.v").to(type).set_requires_grad(true);
      const int64_t B = qk.size(0), L = qk.size(2);
      const Sequences whole = sequences_of(B, L, {}, {});
      const Tensor code =
          angular_hash(qk, branch->rotations, whole, [&](int64_t tokens) { return branch->buckets(tokens); });
      EXPECT_TRUE(code.equal(one.at("out.bucket")));
      const auto plan = branch->plan(code, whole);
      std::vector<int64_t> order;
      for (const auto& groups : plan->each) order.insert(order.end(), groups.key.begin(), groups.key.end());
      EXPECT_TRUE(at::tensor(order, at::kLong).view({B, H, R, L}).equal(one.at("out.order")));

      const Batch batch;
      Pass pass{.batch = batch};
      const Tensor o = branch->read(qk, v, pass);
      golden::expect_close(o, one.at("out.o"), one, "o");
      (o * one.at("cot.o").to(type)).sum().backward();
      golden::expect_gradient(qk.grad(), one.at("grad.in.qk"), one, "qk");
      golden::expect_gradient(v.grad(), one.at("grad.in.v"), one, "v");
    }
  }
}

/// Every valid token of every document by the definition, the others 0.
Tensor defined(LshAttention& branch, const Sequence& s, const reference::Lsh& o) {
  const int64_t B = s.x.size(0), L = s.x.size(1), H = branch.rotations.size(0), d = branch.rotations.size(3);
  const auto heads = [&](const Linear& linear) { return linear.forward(s.x).unflatten(-1, {H, d}).transpose(1, 2); };
  const Tensor qk = heads(*branch.q), v = heads(*branch.v);
  Tensor read = at::zeros({B, H, L, d}, real());
  const Sequences sequences = sequences_of(B, L, s.valid, s.document);
  for (int64_t b = 0; b < B; ++b)
    for (const auto& tokens : sequences[static_cast<size_t>(b)]) {
      const Tensor places = at::tensor(std::vector<int64_t>(tokens.begin(), tokens.end()), at::kLong);
      const int64_t half = branch.buckets(places.numel()) / 2;
      for (int64_t h = 0; h < H; ++h) {
        const auto of = [&](const Tensor& t) { return t[b][h].index_select(0, places).contiguous(); };
        const Tensor bucket =
            reference::lsh_buckets(of(qk), branch.rotations[h].select(1, 0).narrow(2, 0, half).contiguous());
        read[b][h].index_copy_(0, places, reference::lsh_attention(of(qk), of(v), bucket, o));
      }
    }
  const Tensor out = branch.out->forward(read.transpose(1, 2).flatten(2));
  return s.valid.defined() ? out.masked_fill(s.valid.logical_not().unsqueeze(-1), 0) : out;
}

TEST(LshAttention, EqualsTheDefinitionAmongPaddingAndDocuments) {
  const int64_t length = 45;
  const at::NoGradGuard guard;
  Sequence marked{normal({2, length, 8}, 1)};
  marked.valid = at::rand({2, length}, at::detail::createCPUGenerator(2)) > 0.25;
  marked.document = at::arange(length, at::kLong).ge(at::tensor({11, 30}, at::kLong).unsqueeze(1)).to(at::kLong);
  for (const bool causal : {false, true})
    for (const int64_t chunk : {1, 4, 7, 64}) {
      const auto branch = make_lsh(text("rounds = 3\nchunk = ", chunk, "\ncausal = ", causal ? "true" : "false"), 8, 2);
      const reference::Lsh o{.chunk = chunk, .causal = causal};
      for (const Sequence& s : {marked, Sequence{marked.x}}) {
        EXPECT_LE(distance(run(*branch, s, {length}), defined(*branch, s, o)), 1e-12) << chunk << " " << causal;
      }
    }
}

TEST(LshAttention, PaddingMovesNoTokenWhateverItHolds) {
  expect_padding_moves_nothing(*make_lsh("rounds = 2\nchunk = 4", 8, 2), normal({1, 21, 8}, 1));
}

// lucidrains/reformer-pytorch#72, google/trax#1664, huggingface/transformers#20031.
TEST(LshAttention, OneObjectServesEveryLength) {
  const auto branch = make_lsh("rounds = 2\nchunk = 64", 16, 2, at::kFloat);
  const at::NoGradGuard guard;
  std::map<int64_t, Tensor> first;
  for (const int64_t length : {1000, 1, 2, 63, 65, 129, 32, 16, 48, 1000, 2}) {
    const Tensor out = run(*branch, {normal({1, length, 16}, 3).to(at::kFloat)}, {length});
    EXPECT_TRUE(out.isfinite().all().item<bool>()) << length;
    if (first.count(length)) EXPECT_TRUE(out.equal(first.at(length))) << length;
    first[length] = out;
  }
  EXPECT_EQ(run(*branch, {at::zeros({2, 0, 16})}, {0}).sizes(), (std::vector<int64_t>{2, 0, 16}));
}

TEST(LshAttention, OneTokenReadsItselfAndPaddingNothing) {
  const auto branch = make_lsh("rounds = 2\nchunk = 4", 8, 2);
  const Tensor x = normal({2, 1, 8}, 1);
  EXPECT_LE(distance(run(*branch, {x}, {1}), branch->out->forward(branch->v->forward(x))), 1e-14);
  const Sequence none{normal({2, 5, 8}, 1), at::zeros({2, 5}, at::kBool)};
  const Outcome empty = run_with_gradients(*branch, none, {5});
  EXPECT_EQ(empty.out.abs().sum().item<double>(), 0);
  for (const auto& [name, gradient] : empty.gradients) EXPECT_EQ(gradient.abs().sum().item<double>(), 0) << name;
}

TEST(LshAttention, TheKernelEqualsTheLoopsThroughTheBranch) {
  const std::string options = "rounds = 3\nchunk = 8";
  const auto exact = make_lsh(options, 32, 2), single = make_lsh(options, 32, 2, at::kFloat);
  const Sequence s{normal({2, 100, 32}, 4)};
  const Outcome want = run_with_gradients(*exact, s, {100});
  const Tensor x = s.x.to(at::kFloat).set_requires_grad(true);
  const Tensor out = run(*single, {x}, {100});
  (out * normal(out.sizes(), 99).to(at::kFloat)).sum().backward();
  EXPECT_LE(distance(out.detach().to(at::kDouble), want.out), 1e-5);
  EXPECT_LE(distance(x.grad().to(at::kDouble), want.gradients.at("x")), 1e-4);
}

// What is causal in the published form, and what is not.
TEST(LshAttention, SortedChunksReadNoLaterValueButAreMovedByLaterTokens) {
  const int64_t length = 60, t = 30;
  const auto branch = make_lsh("rounds = 1\nchunk = 4\nbucket_count = 4", 8, 2);
  EXPECT_FALSE(branch->traits().causal);
  const Tensor x = normal({1, length, 8}, 1).set_requires_grad(true);
  const Tensor out = run(*branch, {x}, {length});
  const Tensor gradient = torch::autograd::grad({out.slice(1, 0, t).square().sum()}, {x})[0];
  EXPECT_GT(gradient.slice(1, 0, t).abs().sum().item<double>(), 0.1);
  EXPECT_EQ(gradient.slice(1, t).abs().sum().item<double>(), 0);
  const at::NoGradGuard guard;
  const Tensor other = at::cat({x.slice(1, 0, t), normal({1, length - t, 8}, 2)}, 1);
  EXPECT_GT(distance(run(*branch, {other}, {length}).slice(1, 0, t), out.slice(1, 0, t)), 1e-3);
}

TEST(LshAttention, ChunksWithinBucketsAreCausalWithoutException) {
  const auto branch = make_lsh("rounds = 3\nchunk = 4\nchunks = \"bucket\"", 8, 2);
  EXPECT_TRUE(branch->traits().causal);
  const at::NoGradGuard guard;
  const Tensor x = normal({1, 60, 8}, 1), whole = run(*branch, {x}, {60});
  for (int64_t t = 1; t < 60; ++t) {
    EXPECT_LE(distance(run(*branch, {x.slice(1, 0, t)}, {t}), whole.slice(1, 0, t)), 1e-13) << t;
    const Tensor other = at::cat({x.slice(1, 0, t), normal({1, 60 - t, 8}, 2)}, 1);
    EXPECT_LE(distance(run(*branch, {other}, {60}).slice(1, 0, t), whole.slice(1, 0, t)), 1e-13) << t;
  }
}

TEST(LshAttention, EverySplitGivesTheWholeWithItsGradients) {
  const int64_t length = 13;
  const auto branch = make_lsh("rounds = 3\nchunk = 2\nbucket_count = 4\nchunks = \"bucket\"", 8, 2);
  EXPECT_TRUE(branch->traits().streams);
  EXPECT_FALSE(make_lsh("", 8, 2)->traits().streams);
  Sequence marked{normal({2, length, 8}, 2)};
  marked.valid = at::rand({2, length}, at::detail::createCPUGenerator(2)) > 0.25;
  marked.document = at::arange(length, at::kLong).ge(at::tensor({4, 9}, at::kLong).unsqueeze(1)).to(at::kLong);
  for (const Sequence& s : {Sequence{marked.x}, marked}) {
    const Outcome whole = run_with_gradients(*branch, s, {length});
    for (const auto& calls : splits(length)) expect_same(run_with_gradients(*branch, s, calls), whole, "split");
    const at::NoGradGuard guard;  // where columns are written behind the kept ones
    EXPECT_LE(distance(run(*branch, s, std::vector<int64_t>(length, 1)), whole.out), 1e-12);
  }
}

TEST(LshAttention, StepsInSingleEqualTheWhole) {
  const int64_t length = 150;
  const auto branch = make_lsh("rounds = 2\nchunk = 8\nbucket_count = 4\nchunks = \"bucket\"", 32, 2, at::kFloat);
  const Sequence s{normal({2, length, 32}, 4).to(at::kFloat)};
  const at::NoGradGuard guard;
  std::vector<int64_t> steps(50, 1);
  steps.insert(steps.begin(), 100);
  EXPECT_LE(distance(run(*branch, s, steps), run(*branch, s, {length})), 1e-5);
}

TEST(LshAttention, GoesBackAsIfItHadReadNoFurther) {
  const auto branch = make_lsh("rounds = 2\nchunk = 2\nbucket_count = 4\nchunks = \"bucket\"", 8, 2);
  const at::NoGradGuard guard;
  const Tensor x = normal({2, 30, 8}, 1), other = normal({2, 10, 8}, 2);
  State state = branch->start(2, real()), fresh = branch->start(2, real());
  run(*branch, {x}, {20, 10}, &state);
  ASSERT_EQ(branch->truncate(state, 0, 13, 0), "");
  ASSERT_EQ(branch->truncate(state, 1, 13, 0), "");
  run(*branch, {x.slice(1, 0, 13)}, {13}, &fresh);
  EXPECT_TRUE(run(*branch, {other}, {10}, &state, 0, 13).equal(run(*branch, {other}, {10}, &fresh, 0, 13)));
  EXPECT_EQ(branch->most_bytes(1, real(), 0), -1) << "chunks are counted from the first token on";
}

// lucidrains/performer-pytorch#10: what is drawn inside forward makes evaluation unrepeatable.
TEST(LshAttention, EvaluationRepeatsAndRotationsAreSaved) {
  for (const std::string more : {"", "redraw = true\n"}) {
    const auto branch = make_lsh(more + "rounds = 1\nchunk = 2\nbucket_count = 8", 16, 2);
    const Sequence s{normal({1, 50, 16}, 1)};
    const at::NoGradGuard guard;
    const Tensor first = run(*branch, s, {50}, nullptr, 1);
    EXPECT_TRUE(run(*branch, s, {50}, nullptr, 2).equal(first)) << "the seed has no say in evaluation";
    EXPECT_TRUE(branch->named_buffers().contains("rotations"));
    const auto other = make_lsh(more + "rounds = 1\nchunk = 2\nbucket_count = 8", 16, 2, at::kDouble, 8);
    for (const auto& p : branch->named_parameters()) other->named_parameters()[p.key()].copy_(p.value());
    EXPECT_FALSE(run(*other, s, {50}).equal(first));
    other->rotations.copy_(branch->rotations);
    EXPECT_TRUE(run(*other, s, {50}).equal(first));

    branch->train();
    const bool redraws = !more.empty();
    const Tensor one = run(*branch, s, {50}, nullptr, 1);
    EXPECT_TRUE(run(*branch, s, {50}, nullptr, 1).equal(one));
    EXPECT_EQ(run(*branch, s, {50}, nullptr, 2).equal(one), !redraws);
    branch->eval();
    EXPECT_TRUE(run(*branch, s, {50}).equal(first)) << "training draws leave the rotations of evaluation";
  }
}

TEST(LshAttention, BucketsFollowTheLength) {
  const auto branch = make_lsh("chunk = 64", 16, 2);
  EXPECT_EQ(branch->buckets(1), 2);
  EXPECT_EQ(branch->buckets(128), 2);
  EXPECT_EQ(branch->buckets(129), 4);
  EXPECT_EQ(branch->buckets(4096), 64);
  EXPECT_EQ(branch->buckets(131072), 2048);
  EXPECT_EQ(make_lsh("chunk = 8\nchunks = \"bucket\"", 16, 2)->buckets(9999), 4) << "of the training length";
}

TEST(LshAttention, RefusesWhatItCannotDo) {
  EXPECT_THROW(make_lsh("heads = 3", 16, 2), Error);
  EXPECT_THROW(make_lsh("rounds = 17", 16, 2), Error);
  EXPECT_THROW(make_lsh("bucket_count = 7", 16, 2), Error);
  EXPECT_THROW(make_lsh("bucket_count = 130", 16, 2), Error);
  EXPECT_THROW(make_lsh("chunks = \"bucket\"\nwrap = \"all\"", 16, 2), Error);
  EXPECT_THROW(make_lsh("chunks = \"bucket\"\nbuckets = \"across\"", 16, 2), Error);
}

}  // namespace
}  // namespace kinfolk
