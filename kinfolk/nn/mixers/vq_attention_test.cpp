#include "kinfolk/nn/mixers/vq_attention.h"

#include <torch/csrc/autograd/autograd.h>

#include "kinfolk/nn/score/by_distance.h"
#include "kinfolk/reference/vq.h"
#include "tests/support/attention.h"

namespace kinfolk {
namespace {
using namespace testing;

/// The bias of the golden row: a number for each head and distance.
struct Bias : ByDistance {
  Tensor values;  // [H, distances]
  Tensor table(const Tensor& distance) const override {
    return values.index_select(1, distance.clamp(0, values.size(1) - 1));
  }
};

std::shared_ptr<VqAttention> make_vq(const std::string& options, int64_t width, int64_t heads) {
  Context context;
  context.size.width = width;
  context.size.heads = heads;
  context.like = real();
  context.generator = at::detail::createCPUGenerator(7);
  context.path = "vq";
  Value table = parse_toml(options, "options");
  table.set("kind", "vq");
  auto made = std::dynamic_pointer_cast<VqAttention>(registry<Branch>().create(Spec(table), context, "vq"));
  const at::NoGradGuard guard;
  made->u.normal_(0, 0.3, context.generator);
  return made;
}

std::shared_ptr<Bias> add_bias(VqAttention& branch, const Tensor& values) {
  const auto bias = std::make_shared<Bias>();
  bias->values = values;
  branch.score.push_back(bias);
  return bias;
}

/// All pairs at once, with gradients: keys reach as far as `straight` blocks back through the quantisation.
Tensor quadratic(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& codebook, const Tensor& bias,
                 int64_t block, int64_t straight) {
  const int64_t L = q.size(2);
  const Tensor chosen = codewords(codebook, nearest_code(k, codebook));
  const Tensor i = at::arange(L, at::kLong).unsqueeze(1), j = at::arange(L, at::kLong).unsqueeze(0);
  const Tensor apart = i.div(block, "floor") - j.div(block, "floor");
  const Tensor live = at::matmul(q, straight_through(k, chosen).transpose(2, 3)),
               still = at::matmul(q, chosen.transpose(2, 3));
  Tensor scores = at::where(apart.le(straight), live, still);
  if (bias.defined()) {
    const Tensor b = bias.index_select(1, (i - j).clamp(0, bias.size(1) - 1).reshape(-1)).view({-1, L, L});
    scores = scores + at::where(apart.le(1), b, at::zeros({}, b.options()));
  }
  return at::matmul(at::softmax(scores.masked_fill(j > i, -INFINITY), -1), v);
}

TEST(VqAttention, Golden) {
  for (const auto& one : golden::cases("attention/transformer_vq")) {
    const Tensor codebook = one.at("in.codebook");
    const int64_t B = one.at("in.q").size(0), H = codebook.size(0), S = codebook.size(1), d = codebook.size(2),
                  L = one.at("in.q").size(2), block = one.config.at("block");
    const double scale = one.config.at("scale");
    const Tensor bias = one.has("param.bias") ? one.at("param.bias").set_requires_grad(true) : Tensor();
    for (const auto& calls : std::vector<std::vector<int64_t>>{{L}, {5, L - 5}, std::vector<int64_t>(L, 1)}) {
      const auto branch = make_vq(text("codes = ", S, "\nblock = ", block), H * d, H);
      {
        const at::NoGradGuard guard;
        branch->u.zero_(), branch->sum.copy_(codebook), branch->count.fill_(1);
      }
      if (bias.defined()) add_bias(*branch, bias);
      const Tensor q = one.at("in.q").set_requires_grad(true), k = one.at("in.k").set_requires_grad(true),
                   v = one.at("in.v").set_requires_grad(true);
      const Batch batch;
      std::vector<Tensor> outs;
      State state = branch->start(B, real());
      Tensor commit = at::zeros({}, real());
      int64_t from = 0;
      for (const int64_t n : calls) {
        std::map<std::string, Tensor> losses;
        Pass pass{.batch = batch};
        pass.position = at::arange(from, from + n, at::kLong).repeat({B, 1});
        pass.losses = &losses;
        const auto part = [&](const Tensor& t) { return t.narrow(2, from, n); };
        outs.push_back(branch->read(part(q) * scale, part(k), part(v), pass, &state));
        commit = commit + losses.at("commitment") * static_cast<double>(n) / static_cast<double>(L);
        from += n;
      }
      const Tensor out = at::cat(outs, 2);
      golden::expect_close(out, one.at("out.o"), one, "o");
      golden::expect_close(commit.view({1}), one.at("out.commit"), one, "commit");
      EXPECT_TRUE(nearest_code(k, codebook).equal(one.at("out.code"))) << one.name;

      std::vector<Tensor> by{q, v, k};
      if (bias.defined()) by.push_back(bias);
      const auto number = [&](const Tensor& o) {
        return (o * one.at("cot.o")).sum() + (commit * one.at("cot.commit")).sum();
      };
      const auto got = torch::autograd::grad({number(out)}, by, {}, true);
      golden::expect_gradient(got[0], one.at("grad.in.q"), one, "q");
      golden::expect_gradient(got[1], one.at("grad.in.v"), one, "v");
      if (bias.defined()) golden::expect_gradient(got[3], one.at("grad.param.bias"), one, "bias");
      // The row lets gradients reach every key; the branch, those of two blocks. The quadratic form says both.
      const auto all =
          torch::autograd::grad({number(quadratic(q * scale, k, v, codebook, bias, block, L))}, by, {}, true);
      golden::expect_gradient(all[2], one.at("grad.in.k"), one, "k, all");
      const auto near =
          torch::autograd::grad({number(quadratic(q * scale, k, v, codebook, bias, block, 1))}, by, {}, true);
      EXPECT_LE(distance(got[2], near[2]), 1e-12) << one.name;
      EXPECT_GT(distance(near[2], all[2]), 1e-6) << "there are older keys in the case";
    }
    // The codebook's moving averages.
    Tensor count = one.at("in.ema_count").clone(), sum = one.at("in.ema_sum").clone();
    move_codes(count, sum, code_statistics(one.at("in.k"), one.at("out.code"), S, {}), one.config.at("decay"));
    golden::expect_close(count, one.at("out.new_count"), one, "count");
    golden::expect_close(sum, one.at("out.new_sum"), one, "sum");
    golden::expect_close(codebook_of(count, sum, one.config.at("ema_eps")), one.at("out.new_codebook"), one,
                         "codebook");
  }
}

TEST(VqAttention, EqualsTheDefinition) {
  const int64_t length = 41;
  at::manual_seed(2);
  const Tensor valid = at::rand({2, length}) > 0.2;
  const Tensor document =
      (at::arange(length, at::kLong).unsqueeze(0) >= at::tensor({11, 30}, at::kLong).unsqueeze(1)).to(at::kLong);
  const at::NoGradGuard guard;
  for (const int64_t block : {1, 3, 5, 64}) {
    const auto branch = make_vq(text("codes = 6\nblock = ", block), 8, 2);
    const Tensor bias = normal({2, 2 * block}, 5);
    add_bias(*branch, bias);
    for (const bool marked : {false, true}) {
      Sequence s{normal({2, length, 8}, 1)};
      if (marked) s.valid = valid, s.document = document;
      const auto heads = [&](const Linear& linear, bool norm) {
        const Tensor x = linear.forward(s.x).unflatten(-1, {2, 4}).transpose(1, 2);
        return norm ? at::layer_norm(x, {4}) * std::pow(4.0, -0.25) : x;
      };
      const Tensor q = heads(*branch->q, true), k = heads(*branch->k, true), v = heads(*branch->v, false);
      Tensor want = at::zeros({2, length, 8}, real());
      for (int64_t b = 0; b < 2; ++b) {
        const Tensor places = marked ? valid[b].nonzero().squeeze(1) : at::arange(length, at::kLong);
        const auto part = [&](const Tensor& t) { return t[b].index_select(1, places).contiguous(); };
        std::vector<int64_t> documents(static_cast<size_t>(places.numel()), 0);
        for (size_t i = 0; i < documents.size() && marked; ++i)
          documents[i] = document[b][places[static_cast<int64_t>(i)].item<int64_t>()].item<int64_t>();
        // The bias belongs to q alone, the content bias u to the codewords: (q + u) . C.
        const Tensor code = reference::vq_codes(part(k), branch->codebook());
        const Tensor read = reference::vq_attention((part(q) + branch->u.unsqueeze(1)).contiguous(), branch->codebook(),
                                                    code, part(v), bias, block, documents);
        want[b].index_copy_(0, places, read.transpose(0, 1).flatten(1));
      }
      want = branch->out->forward(want);
      if (marked) want.masked_fill_(valid.logical_not().unsqueeze(-1), 0);
      for (const auto& calls :
           std::vector<std::vector<int64_t>>{{length}, {13, 28}, {1, 2, 3, 35}, std::vector<int64_t>(length, 1)})
        EXPECT_LE(distance(run(*branch, s, calls), want), 1e-11) << block << " " << marked << " " << calls[0];
    }
  }
}

TEST(VqAttention, EverySplitGivesTheWholeWithItsGradients) {
  const int64_t length = 13;
  for (const std::string more : {"", "gate = \"silu\"\n"}) {
    const auto branch = make_vq(more + "codes = 5\nblock = 2\nscore = [\"xl\"]", 8, 2);
    const Sequence s{normal({2, length, 8}, 2)};
    const Outcome whole = run_with_gradients(*branch, s, {length});
    for (const auto& calls : splits(length)) expect_same(run_with_gradients(*branch, s, calls), whole, more);
  }
}

TEST(VqAttention, StateIsThereAtTheStartAndNeverGrows) {
  const auto branch = make_vq("codes = 5\nblock = 4", 8, 2);
  State state = branch->start(1, real());
  const int64_t bytes = state.bytes();
  const at::NoGradGuard guard;
  for (int64_t call = 0; call < 12; ++call) {
    run(*branch, {normal({1, 7, 8}, static_cast<uint64_t>(call))}, {7}, &state, 0, call * 7);
    EXPECT_EQ(state.bytes(), bytes);
  }
  EXPECT_EQ(state.tensors.at("count").sum().item<int64_t>(), 2 * (84 / 4 - 1) * 4) << "all but the last two blocks";
}

TEST(VqAttention, EndlessSumsLoseNoDigits) {
  // A hundred million keys of one code, then others: the mean in float32 still moves by what comes in.
  CodeSums sums{at::full({1, 1, 1}, 100'000'000, at::kLong), at::ones({1, 1, 1, 1})};
  const Tensor keep = at::ones({1}, at::kBool), taken = at::ones({1, 1000}, at::kBool);
  for (int64_t call = 0; call < 100; ++call) {
    sums = add_codes(sums, keep, at::zeros({1, 1, 1000}, at::kLong), at::full({1, 1, 1000, 1}, 2.0f), taken);
  }
  EXPECT_EQ(sums.count.item<int64_t>(), 100'100'000);
  EXPECT_NEAR(sums.mean.item<double>(), 1 + 100'000.0 / 100'100'000, 2e-5);
}

struct Training {
  std::shared_ptr<VqAttention> branch;
  std::vector<std::function<void()>> updates;
  Batch batch;

  Tensor call(const Tensor& x, uint64_t seed = 0, const Tensor& valid = {}) {
    Pass pass{.batch = batch};
    pass.position = at::arange(x.size(1), at::kLong).repeat({x.size(0), 1});
    pass.valid = valid;
    pass.seed = seed;
    pass.updates = &updates;
    return branch->forward(x, pass, nullptr);
  }
};

TEST(VqAttention, TheCodebookMovesAfterTheStepInTrainingAlone) {
  Training t{make_vq("codes = 4\nblock = 4\ndecay = 0.9\ndead = 0", 8, 2), {}, {}};
  const Tensor x = normal({2, 20, 8}, 3), before = t.branch->codebook();
  t.branch->eval();
  t.call(x);
  EXPECT_TRUE(t.updates.empty());
  t.branch->train();
  t.call(x);
  ASSERT_EQ(t.updates.size(), 1u);
  EXPECT_TRUE(t.branch->codebook().equal(before)) << "not yet";
  const Tensor k = at::layer_norm(t.branch->k->forward(x).unflatten(-1, {2, 4}).transpose(1, 2), {4}).detach() *
                   std::pow(4.0, -0.25);
  const CodeStatistics found = code_statistics(k, nearest_code(k, before), 4, {});
  EXPECT_NEAR(found.count.sum().item<double>(), 80, 1e-9);
  for (const auto& update : t.updates) update();
  EXPECT_LE(distance(t.branch->count, 0.9 + 0.1 * found.count), 1e-12);
  EXPECT_LE(distance(t.branch->sum, 0.9 * before + 0.1 * found.sum), 1e-12);
  EXPECT_FALSE(t.branch->codebook().requires_grad());
}

TEST(VqAttention, PaddingIsNoPartOfTheCodebookOrTheLoss) {
  const auto of = [&](double padding) {
    Training t{make_vq("codes = 4\nblock = 4", 8, 2), {}, {}};
    t.branch->train();
    Tensor x = normal({2, 20, 8}, 3);
    const Tensor valid = at::ones({2, 20}, at::kBool);
    valid[1].slice(0, 7).fill_(false);
    x = at::where(valid.unsqueeze(-1), x, at::full({}, padding, x.options()));
    t.call(x, 5, valid);
    for (const auto& update : t.updates) update();
    return at::cat({t.branch->count.reshape(-1), t.branch->sum.reshape(-1)});
  };
  EXPECT_TRUE(of(1).equal(of(100)));
  EXPECT_TRUE(of(1).equal(of(std::nan(""))));
}

TEST(VqAttention, UnusedCodewordsStartAnewOnKeysOfTheCall) {
  Training t{make_vq("codes = 3\nblock = 4\ndecay = 0.5\ndead = 0.01", 8, 2), {}, {}};
  t.branch->train();
  {
    const at::NoGradGuard guard;
    t.branch->sum.select(1, 2).fill_(1000);  // so far away that no key is ever near
  }
  const Tensor x = normal({2, 20, 8}, 3);
  std::vector<double> far;
  for (uint64_t step = 0; step < 8; ++step) {
    t.updates.clear();
    t.call(x, step);
    for (const auto& update : t.updates) update();
    far.push_back(t.branch->codebook().abs().max().item<double>());
  }
  EXPECT_GT(far[0], 100) << "its average use falls slowly";
  EXPECT_LT(far.back(), 5) << "then it is put on a key";
  EXPECT_TRUE(t.branch->count.gt(0.01).all().item<bool>()) << t.branch->count;
  // The draw comes from the pass's seed.
  const auto codebook_after = [&](uint64_t seed) {
    Training again{make_vq("codes = 3\nblock = 4\ndecay = 0\ndead = 0.5", 8, 2), {}, {}};
    again.branch->train();
    const at::NoGradGuard guard;
    again.branch->sum.select(1, 2).fill_(1000);
    again.call(x, seed);
    for (const auto& update : again.updates) update();
    return again.branch->codebook();
  };
  EXPECT_TRUE(codebook_after(1).equal(codebook_after(1)));
  EXPECT_FALSE(codebook_after(1).equal(codebook_after(2)));
}

TEST(VqAttention, RefusesWhatItCannotDo) {
  EXPECT_THROW(make_vq("score = [\"shaw\"]", 8, 2), Error);
  EXPECT_THROW(make_vq("heads = 3", 8, 2), Error);
}

}  // namespace
}  // namespace kinfolk
