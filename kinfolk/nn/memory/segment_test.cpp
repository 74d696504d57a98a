#include "kinfolk/nn/memory/segment.h"

#include "kinfolk/nn/norm.h"
#include "kinfolk/nn/qk/xl_bias.h"
#include "kinfolk/nn/score/xl.h"
#include "tests/support/attention.h"

namespace kinfolk {
namespace {
using namespace testing;

std::string memory(int64_t segment, int64_t memory, const std::string& more = "") {
  return text("memory = { kind = \"segment\", segment = ", segment, ", memory = ", memory, more, " }\n");
}
const std::string kSame = ", reach = \"same\"", kZeros = ", start = \"zeros\"";

TEST(Segment, GoldenTransformerXl) {
  for (const auto& one : golden::cases("attention/transformer_xl")) {
    const int64_t n = one.config.at("segment"), m = one.config.at("memory"), heads = one.config.at("heads");
    const Tensor start = one.at("in.x");
    const int64_t width = start.size(2), length = start.size(1);
    for (const auto& calls : std::vector<std::vector<int64_t>>{{length}, {n, n, n}, {1, n, length - n - 1}}) {
      SCOPED_TRACE(text("first call ", calls[0]));
      std::vector<std::shared_ptr<Attention>> layers;
      std::map<std::string, Tensor> p;
      const auto given = [&](const std::string& name) {
        return p[name] = one.at("param." + name).set_requires_grad(true);
      };
      const Tensor x = start.detach().clone().set_requires_grad(true);
      std::vector<State> states;
      for (int64_t l = 0; l < 2; ++l) {
        const auto layer = make_attention(memory(n, m) + "qk = [\"xl_bias\"]\nscore = [\"xl\"]", width, heads);
        at::NoGradGuard no_grad;
        const auto set = [&](Tensor& weight, const std::string& name) {
          weight.copy_(one.at(text("param.l", l, ".", name)).t());
        };
        const auto score = std::dynamic_pointer_cast<Xl>(layer->score[0]);
        set(layer->q->weight, "wq"), set(layer->k->weight, "wk"), set(layer->v->weight, "wv");
        set(layer->out->weight, "wo"), set(score->r->weight, "wr");
        score->v.copy_(one.at("param.v"));
        std::dynamic_pointer_cast<XlBias>(layer->qk[0])->u.copy_(one.at("param.u"));
        layers.push_back(layer);
        states.push_back(layer->start(start.size(0), real()));
        for (const std::string name : {"w1", "b1", "w2", "b2", "g1", "c1", "g2", "c2"}) given(text("l", l, ".", name));
      }
      Tensor h = x;
      for (int64_t l = 0; l < 2; ++l) {
        const auto at = [&](const std::string& name) { return p.at(text("l", l, ".", name)); };
        h = at::layer_norm(h + run(*layers[l], {h}, calls, &states[l]), {width}, at("g1"), at("c1"));
        h = at::layer_norm(h + at::matmul(at::relu(at::matmul(h, at("w1")) + at("b1")), at("w2")) + at("b2"), {width},
                           at("g2"), at("c2"));
      }
      golden::expect_close(h, one.at("out.h"), one, "h");
      for (int64_t l = 0; l < 2; ++l) {
        const Tensor kept = states[l].tensors.at("x");
        golden::expect_close(kept.narrow(1, kept.size(1) - m, m), one.at(text("out.mem", l)), one, "memory");
      }
      (h * one.at("cot.h")).sum().backward();
      golden::expect_gradient(x.grad(), one.at("grad.in.x"), one, "x");
      for (const auto& [name, tensor] : p)
        golden::expect_gradient(tensor.grad(), one.at("grad.param." + name), one, name);
      Tensor u = at::zeros_like(one.at("param.u")), v = at::zeros_like(u);
      for (int64_t l = 0; l < 2; ++l) {
        const auto& a = *layers[l];
        const auto score = std::dynamic_pointer_cast<Xl>(a.score[0]);
        for (const auto& [name, weight] : std::map<std::string, Tensor>{{"wq", a.q->weight},
                                                                        {"wk", a.k->weight},
                                                                        {"wv", a.v->weight},
                                                                        {"wo", a.out->weight},
                                                                        {"wr", score->r->weight}})
          golden::expect_gradient(weight.grad().t(), one.at(text("grad.param.l", l, ".", name)), one, name);
        u = u + std::dynamic_pointer_cast<XlBias>(a.qk[0])->u.grad();
        v = v + score->v.grad();
      }
      golden::expect_gradient(u, one.at("grad.param.u"), one, "u");
      golden::expect_gradient(v, one.at("grad.param.v"), one, "v");
    }
  }
}

TEST(Segment, SameReachDoesNotDependOnTheSegments) {
  const Sequence s{normal({2, 17, 8}, 1)};
  const auto window = make_attention("pattern = \"causal & window(6)\"\nqk = [\"rope\"]", 8, 2);
  const Tensor want = run(*window, s, {17});
  for (const int64_t n : {2, 3, 8}) {
    const auto branch = make_attention(memory(n, 6, kSame) + "qk = [\"rope\"]", 8, 2);
    for (const auto& calls : std::vector<std::vector<int64_t>>{{17}, {2, 3, 8, 4}, {8, 8, 1}})
      EXPECT_LE(distance(run(*branch, s, calls), want), 1e-12) << n;
  }
}

TEST(Segment, SeesFromMBeforeItsSegment) {
  // Changing one token changes exactly the outputs that may see it.
  const int64_t n = 4, m = 3, length = 13;
  const auto branch = make_attention(memory(n, m), 8, 2);
  at::NoGradGuard no_grad;
  const Sequence s{normal({1, length, 8}, 1)};
  const Tensor before = run(*branch, s, {length});
  for (int64_t j = 0; j < length; ++j) {
    Sequence changed{s.x.clone()};
    changed.x.select(1, j).add_(1);
    const Tensor moved = (run(*branch, changed, {length}) - before).abs().amax(-1)[0];
    for (int64_t i = 0; i < length; ++i)
      EXPECT_EQ(moved[i].item<double>() > 1e-9, j <= i && j >= i / n * n - m) << i << " " << j;
  }
}

TEST(Segment, GradientsStopAtTheSegment) {
  const int64_t n = 4, length = 12;
  const auto branch = make_attention(memory(n, 8), 8, 2);
  for (int64_t i = 0; i < length; ++i) {
    const Tensor x = normal({1, length, 8}, 1).set_requires_grad(true);
    run(*branch, {x}, {5, 7}).select(1, i).sum().backward();
    const Tensor reached = x.grad().abs().amax(-1)[0];
    for (int64_t j = 0; j < length; ++j)
      EXPECT_EQ(reached[j].item<double>() > 0, j <= i && j >= i / n * n) << i << " " << j;
  }
}

TEST(Segment, NoMemoryIsAnEmptyMemoryAndFullMemoryIsOnePass) {
  const Sequence s{normal({1, 12, 8}, 4)};
  for (const std::string steps : {"qk = [\"rope\"]", "qk = [\"xl_bias\"]\nscore = [\"xl\"]", "score = [\"alibi\"]"}) {
    const auto branch = make_attention(memory(6, 100) + steps, 8, 2);
    State started = branch->start(1, real()), bare;
    const Tensor want = run(*make_attention(steps, 8, 2), s, {12});
    EXPECT_LE(distance(run(*branch, s, {12}), want), 1e-12);
    EXPECT_LE(distance(run(*branch, s, {12}, &started), want), 1e-12);
    EXPECT_LE(distance(run(*branch, s, {12}, &bare), want), 1e-12);
    EXPECT_LE(distance(run(*branch, s, {6, 6}), want), 1e-12);
  }
}

TEST(Segment, KeepsTheLastInputsOldestFirstAndOnce) {
  for (const int64_t n : {1, 3}) {
    const auto branch = make_attention(memory(n, 5), 8, 2);
    const Sequence s{normal({1, 14, 8}, 4)};
    State state = branch->start(1, real());
    const int64_t bytes = state.bytes(), capacity = 5 + n - 1;
    const Batch batch;
    int64_t seen = 0;
    for (const int64_t call : {3, 3, 7, 1}) {
      Pass pass{.batch = batch};
      pass.position = at::arange(seen, seen + call, at::kLong).unsqueeze(0);
      branch->forward(s.x.narrow(1, seen, call), pass, &state);
      seen += call;
      const int64_t kept = std::min(seen, capacity);
      const Tensor at = state.tensors.at("at");
      EXPECT_EQ(at.size(1), capacity);
      EXPECT_TRUE(at.slice(1, capacity - kept).equal(at::arange(seen - kept, seen, at::kLong).unsqueeze(0)));
      EXPECT_EQ(at.ge(0).sum().item<int64_t>(), kept);
      EXPECT_EQ(distance(state.tensors.at("x").slice(1, capacity - kept), s.x.narrow(1, seen - kept, kept)), 0);
      EXPECT_EQ(state.bytes(), bytes);
    }
  }
}

TEST(Segment, ZerosAreAttendedRows) {
  const int64_t m = 3;
  const auto branch = make_attention(memory(4, m, kZeros), 8, 2);
  const Tensor x = normal({1, 2, 8}, 1);
  // Without biases a row of zeros has score 0 and value 0: it only enlarges the normaliser.
  const Tensor at = at::arange(2, at::kLong).unsqueeze(0);
  const auto made = branch->project(x);
  const Tensor q = branch->q->forward(x).unflatten(-1, {2, 4}).transpose(1, 2);
  const Read plain = branch->look(q, at, {}, {Keys{made.k, made.v, at, {}, {}, {}}});
  const Tensor share = (plain.lse.exp() / (plain.lse.exp() + m)).unsqueeze(-1);
  const Tensor want = branch->out->forward((plain.out * share).transpose(1, 2).flatten(2));
  EXPECT_LE(distance(run(*branch, {x}, {2}), want), 1e-12);
  EXPECT_LE(distance(run(*branch, {x}, {1, 1}), want), 1e-12);
}

TEST(Segment, KeptKeysReadAsKeptInputs) {
  const std::string kKept = ", keep = \"keys\"";
  const int64_t length = 19;
  const Sequence s{normal({2, length, 8}, 3)};
  for (const std::string& more : {std::string(), kSame})
    for (const std::string steps : {"qk = [\"rope\"]", "qk = [\"xl_bias\"]\nscore = [\"xl\"]"}) {
      const auto inputs = make_attention(memory(4, 6, more) + steps, 8, 2);
      const auto keys = make_attention(memory(4, 6, more + kKept) + steps, 8, 2);
      const Outcome whole = run_with_gradients(*keys, s, {length});
      EXPECT_LE(distance(run(*inputs, s, {length}), whole.out), 1e-12) << more << steps;
      for (const auto& calls : std::vector<std::vector<int64_t>>{{7, 12}, {1, 2, 3, 13}, {4, 4, 4, 4, 3}}) {
        EXPECT_LE(distance(run(*inputs, s, calls), whole.out), 1e-12) << more << steps;
        expect_same(run_with_gradients(*keys, s, calls), whole, more + steps);
      }
      const at::NoGradGuard guard;
      State state = keys->start(2, real()), other = inputs->start(2, real());
      keys->eval(), inputs->eval();
      EXPECT_LE(distance(run(*keys, s, std::vector<int64_t>(length, 1), &state),
                         run(*inputs, s, std::vector<int64_t>(length, 1), &other)),
                1e-12);
      EXPECT_EQ(state.tensors.at("k").nbytes() + state.tensors.at("v").nbytes(), 2 * other.tensors.at("x").nbytes());
    }
}

TEST(Segment, KeptKeysGoBackAsKeptInputsDo) {
  const auto branch = make_attention(memory(4, 6, ", keep = \"keys\""), 8, 2);
  const at::NoGradGuard guard;
  const Sequence s{normal({1, 15, 8}, 3)}, back{s.x.narrow(1, 0, 13)};
  State went = branch->start(1, real()), straight = branch->start(1, real());
  run(*branch, s, {15}, &went);
  ASSERT_EQ(branch->memory->truncate(went, 0, 13, 15), "");
  run(*branch, back, {13}, &straight);
  for (const char* name : {"k", "v"}) {  // what lies before was dropped
    EXPECT_EQ(distance(went.tensors.at(name).slice(2, 2), straight.tensors.at(name).slice(2, 2)), 0) << name;
  }
  EXPECT_TRUE(went.tensors.at("at").slice(1, 2).equal(straight.tensors.at("at").slice(1, 2)));
}

TEST(Segment, RefusesAPatternThatSeesTheFuture) {
  EXPECT_THROW(make_attention(memory(4, 4) + "pattern = \"full\"", 8, 2), Error);
  EXPECT_THROW(make_attention(memory(4, 4, kZeros + ", keep = \"keys\""), 8, 2), Error);
}

TEST(Segment, ReachAndTraits) {
  const auto published = make_attention(memory(4, 3), 8, 2), same = make_attention(memory(4, 3, kSame), 8, 2);
  EXPECT_EQ(published->memory->reach(), 7);
  EXPECT_EQ(same->memory->reach(), 3);
  EXPECT_EQ(published->memory->seen(2), 3);
  EXPECT_EQ(published->memory->seen(9), 5);
  EXPECT_EQ(same->memory->seen(9), 3);
  EXPECT_TRUE(published->traits().carries && published->traits().bounded && published->traits().streams);
  EXPECT_FALSE(published->traits().relative);
  EXPECT_TRUE(same->traits().relative);
}

}  // namespace
}  // namespace kinfolk
