#include "kinfolk/nn/mixers/attention.h"

#include <ATen/autocast_mode.h>

#include "tests/support/attention.h"

namespace kinfolk {
namespace {
using namespace testing;

const std::map<std::string, std::string> kSchemes = {
    {"none", ""},
    {"grouped", "groups = 1\nbias = true"},
    {"rope", "qk = [\"rope\"]"},
    {"partial rope, log-n",
     "qk = [{ kind = \"rope\", layout = \"interleaved\", rotary = 2 }, { kind = \"log_n\", "
     "trained = 4, clip = false }]"},
    {"rerope, log-n", "qk = [{ kind = \"rerope\", window = 4 }, { kind = \"log_n\", trained = 6 }]"},
    {"leaky_rerope", "qk = [{ kind = \"leaky_rerope\", window = 3, k = 2.5 }]"},
    {"key_norm, bias", "groups = 1\nqk = [\"qk_bias\", \"key_norm\", \"rope\"]"},
    {"alibi", "score = [\"alibi\"]"},
    {"xl", "qk = [\"xl_bias\"]\nscore = [\"xl\"]"},
};
const std::vector<std::string> kPatterns = {"causal", "causal & window(5)"};
const std::vector<std::string> kMemories = {
    "\"cache\"",
    "{ kind = \"segment\", segment = 4, memory = 3 }",
    "{ kind = \"segment\", segment = 3, memory = 5, reach = \"same\" }",
    "{ kind = \"segment\", segment = 5, memory = 4, start = \"zeros\" }",
};

void for_each(const std::function<void(Attention&, const std::string& scheme)>& test) {
  for (const auto& [scheme, options] : kSchemes)
    for (const auto& pattern : kPatterns)
      for (const auto& memory : kMemories) {
        SCOPED_TRACE(scheme + ", " + pattern + ", " + memory);
        test(*make_attention(options + "\npattern = \"" + pattern + "\"\nmemory = " + memory, 8, 2), scheme);
      }
}

TEST(Attention, GoldenMha) {
  for (const auto& one : golden::cases("attention/mha")) {
    const Tensor x = one.at("in.x").set_requires_grad(true), memory = one.at("in.mem").set_requires_grad(true);
    const bool causal = one.config.at("causal");
    const auto branch = make_attention(text("bias = true\npattern = \"", causal ? "causal" : "full", "\""), x.size(2),
                                       one.config.at("heads"));
    const std::map<std::string, Linear*> projections{
        {"q", branch->q.get()}, {"k", branch->k.get()}, {"v", branch->v.get()}, {"o", branch->out.get()}};
    for (const auto& [name, linear] : projections) {
      at::NoGradGuard no_grad;
      linear->weight.copy_(one.at("param.w" + name).t());
      linear->bias.copy_(one.at("param.b" + name));
    }
    const auto at = [](const Tensor& t) { return at::arange(t.size(1), at::kLong).repeat({t.size(0), 1}); };
    const auto seen = branch->project(memory);
    const Tensor q = branch->q->forward(x).unflatten(-1, {one.config.at("heads").get<int64_t>(), -1}).transpose(1, 2);
    const Read read = branch->look(q, at(x), {}, {Keys{seen.k, seen.v, at(memory), {}, {}, {}}});
    const Tensor y = branch->out->forward(read.out.transpose(1, 2).flatten(2));
    golden::expect_close(y, one.at("out.y"), one, "y");
    (y * one.at("cot.y")).sum().backward();
    golden::expect_gradient(x.grad(), one.at("grad.in.x"), one, "x");
    golden::expect_gradient(memory.grad(), one.at("grad.in.mem"), one, "mem");
    for (const auto& [name, linear] : projections) {
      golden::expect_gradient(linear->weight.grad().t(), one.at("grad.param.w" + name), one, "w" + name);
      golden::expect_gradient(linear->bias.grad(), one.at("grad.param.b" + name), one, "b" + name);
    }
    if (memory.sizes() == x.sizes() && memory.equal(x)) {
      golden::expect_close(run(*branch, {x.detach()}, {x.size(1)}), one.at("out.y"), one, "forward");
    }
  }
}

TEST(Attention, GoldenSlidingWindow) {
  for (const auto& one : golden::cases("attention/sliding_window")) {
    const int64_t w = one.config.at("w");
    // window(w) counts the own position: |i - j| <= w is window(w + 1).
    const std::string pattern =
        one.config.at("causal").get<bool>() ? text("causal & window(", w, ")") : text("window(", w + 1, ")");
    expect_core(one, *core_branch(one, "pattern = \"" + pattern + "\""));
  }
}

TEST(Attention, EverySplitGivesTheSameValuesAndGradients) {
  const auto all = splits(13);
  int64_t turn = 0;
  for_each([&](Attention& branch, const std::string& scheme) {
    const Sequence s{normal({2, 13, 8}, 21)};
    const Outcome whole = run_with_gradients(branch, s, {13});
    // All 79 splits where most can go wrong, an eighth of them elsewhere.
    const bool thorough = scheme == "xl";
    for (size_t n = thorough ? 0 : turn++ % 8; n < all.size(); n += thorough ? 1 : 8) {
      std::string cut;
      for (const int64_t piece : all[n]) cut += text(piece, " ");
      expect_same(run_with_gradients(branch, s, all[n]), whole, cut);
      if (::testing::Test::HasFailure()) return;
    }
  });
}

TEST(Attention, StepsAreTheWhole) {
  for_each([&](Attention& branch, const std::string&) {
    const Sequence s{normal({2, 12, 8}, 22)};
    const Outcome whole = run_with_gradients(branch, s, {12});
    expect_same(run_with_gradients(branch, s, std::vector<int64_t>(12, 1)), whole, "steps");
    at::NoGradGuard no_grad;
    EXPECT_LE(distance(run(branch, s, std::vector<int64_t>(12, 1)), whole.out), 1e-10) << "without gradients";
    EXPECT_LE(distance(run(branch, s, {5, 7}), whole.out), 1e-10) << "without gradients";
  });
}

TEST(Attention, NothingSeesTheFuture) {
  for_each([&](Attention& branch, const std::string&) {
    at::NoGradGuard no_grad;
    const Sequence s{normal({1, 11, 8}, 23)};
    Sequence other{s.x.clone()};
    other.x.slice(1, 6).add_(3);
    const Tensor a = run(branch, s, {11}), b = run(branch, other, {11});
    EXPECT_LE(distance(a.slice(1, 0, 6), b.slice(1, 0, 6)), 1e-12);
    EXPECT_GT(distance(a.slice(1, 6), b.slice(1, 6)), 1e-3);
  });
}

TEST(Attention, InvalidTokensAreNotThere) {
  // Lanes: full, left padding, a gap in the middle, right padding.
  const Tensor valid = at::ones({4, 11}, at::kBool);
  valid[1].slice(0, 0, 5).fill_(false);
  valid[2].slice(0, 4, 7).fill_(false);
  valid[3].slice(0, 8).fill_(false);
  for_each([&](Attention& branch, const std::string&) {
    const Tensor x = normal({4, 11, 8}, 24);
    const Tensor other = at::where(valid.unsqueeze(-1), x, normal({4, 11, 8}, 25) * 10);
    const Outcome whole = run_with_gradients(branch, {x, valid}, {11});
    EXPECT_EQ(whole.out.masked_select(valid.logical_not().unsqueeze(-1)).abs().max().item<double>(), 0);
    EXPECT_EQ(whole.gradients.at("x").masked_select(valid.logical_not().unsqueeze(-1)).abs().max().item<double>(), 0);
    for (const auto& calls : std::vector<std::vector<int64_t>>{{11}, {6, 5}, {3, 1, 7}, std::vector<int64_t>(11, 1)}) {
      expect_same(run_with_gradients(branch, {other, valid}, calls), whole, text(calls.size(), " calls"));
    }
    for (int64_t lane = 0; lane < 4; ++lane) {
      const Tensor real_ones = valid[lane].nonzero().squeeze(1);
      const Tensor alone = run(branch, {x[lane].index_select(0, real_ones).unsqueeze(0)}, {real_ones.size(0)});
      EXPECT_LE(distance(whole.out[lane].index_select(0, real_ones).unsqueeze(0), alone), 1e-10) << "lane " << lane;
    }
  });
}

TEST(Attention, NoSightAcrossDocuments) {
  const Tensor document = at::tensor({0, 0, 0, 0, 1, 1, 1, 2, 2, 2}, at::kLong).unsqueeze(0);
  for (const std::string memory : {"\"cache\"", "{ kind = \"segment\", segment = 4, memory = 6 }"}) {
    const auto branch = make_attention("qk = [\"rope\"]\nmemory = " + memory, 8, 2);
    const Sequence s{normal({1, 10, 8}, 26), {}, document};
    const Outcome whole = run_with_gradients(*branch, s, {10});
    for (const auto& calls : splits(10)) expect_same(run_with_gradients(*branch, s, calls), whole, memory);
    const Tensor alone = run(*make_attention("qk = [\"rope\"]", 8, 2), {s.x.slice(1, 4, 7)}, {3});
    EXPECT_LE(distance(whole.out.slice(1, 4, 7), alone), 1e-10) << memory;
  }
}

TEST(Attention, PromptLongerThanTheWindowIsTheDefinition) {
  const int64_t length = 13, window = 4;
  const auto branch = make_attention(text("pattern = \"causal & window(", window, ")\""), 8, 2);
  const Sequence s{normal({2, length, 8}, 27)};
  const auto made = branch->project(s.x);
  const Tensor q = branch->q->forward(s.x).unflatten(-1, {2, 4}).transpose(1, 2);
  const Tensor i = at::arange(length, at::kLong).unsqueeze(1), j = at::arange(length, at::kLong);
  const Tensor seen = (i - j).ge(0).logical_and((i - j).lt(window));
  const Tensor weights =
      (at::matmul(q, made.k.transpose(2, 3)) / 2).masked_fill(seen.logical_not(), -INFINITY).softmax(-1);
  const Tensor want = branch->out->forward(at::matmul(weights, made.v).transpose(1, 2).flatten(2));
  EXPECT_LE(distance(run(*branch, s, {13}), want), 1e-12);
  EXPECT_LE(distance(run(*branch, s, {5, 5, 3}), want), 1e-12);
}

TEST(Attention, NoStateIsAnEmptyState) {
  for_each([&](Attention& branch, const std::string&) {
    const Sequence s{normal({2, 7, 8}, 28)};
    State started = branch.start(2, real()), bare;
    const Tensor none = run(branch, s, {7});
    EXPECT_LE(distance(run(branch, s, {7}, &started), none), 1e-12);
    EXPECT_LE(distance(run(branch, s, {7}, &bare), none), 1e-12);
  });
}

TEST(Attention, BoundedStatesKeepTheirSizeAndSavedOnesGoOn) {
  for_each([&](Attention& branch, const std::string&) {
    const Sequence first{normal({2, 9, 8}, 29)}, next{normal({2, 4, 8}, 30)};
    State state = branch.start(2, real());
    const int64_t bytes = state.bytes();
    run(branch, first, {1, 5, 3}, &state);
    if (branch.traits().bounded) EXPECT_EQ(state.bytes(), bytes);
    State again = State::from_flat(state.clone().flat());
    EXPECT_EQ(distance(run(branch, next, {4}, &again, 0, 9), run(branch, next, {4}, &state, 0, 9)), 0);
  });
}

TEST(Attention, ShiftedPositionsChangeNothingWhereRelative) {
  for_each([&](Attention& branch, const std::string&) {
    if (!branch.traits().relative) return;
    const Sequence s{normal({1, 9, 8}, 31)};
    EXPECT_LE(distance(run(branch, s, {9}, nullptr, 0, 1000), run(branch, s, {9})), 1e-9);
  });
}

TEST(Attention, Gradcheck) {
  for (const auto& [scheme, options] : kSchemes) {
    const auto branch = make_attention(options, 8, 2);
    const Sequence s{normal({1, 6, 8}, 32)};
    const Outcome got = run_with_gradients(*branch, s, {6});
    at::NoGradGuard no_grad;
    const auto loss = [&](const Tensor& x) {
      return (run(*branch, {x}, {6}) * normal({1, 6, 8}, 99)).sum().item<double>();
    };
    const double step = 1e-5;
    const Tensor direction = normal({1, 6, 8}, 33);
    const double slope = (loss(s.x + step * direction) - loss(s.x - step * direction)) / (2 * step);
    EXPECT_NEAR((got.gradients.at("x") * direction).sum().item<double>(), slope, 1e-7) << scheme;
    for (auto& p : branch->named_parameters()) {
      const Tensor way = normal(p.value().sizes(), 34), old = p.value().clone();
      p.value().copy_(old + step * way);
      const double up = loss(s.x);
      p.value().copy_(old - step * way);
      const double down = loss(s.x);
      p.value().copy_(old);
      EXPECT_NEAR((got.gradients.at(p.key()) * way).sum().item<double>(), (up - down) / (2 * step), 1e-7)
          << scheme << " " << p.key();
    }
  }
}

TEST(Attention, LowPrecisionModelsAndAutocastRun) {
  for (const auto& [scheme, options] : kSchemes)
    for (const auto& memory : kMemories) {
      SCOPED_TRACE(scheme + ", " + memory);
      const std::string all = options + "\nmemory = " + memory;
      const Tensor x = normal({2, 13, 8}, 36);
      const Tensor want = run(*make_attention(all, 8, 2), {x}, {13});
      const auto half = make_attention(all, 8, 2, at::TensorOptions().dtype(at::kBFloat16));
      EXPECT_LE(distance(run(*half, {x.to(at::kBFloat16)}, {4, 1, 8}).to(at::kDouble), want), 0.15);
      const auto single = make_attention(all, 8, 2, at::TensorOptions().dtype(at::kFloat));
      State state = single->start(2, at::TensorOptions().dtype(at::kFloat));
      at::autocast::set_autocast_dtype(at::kCPU, at::kBFloat16);
      at::autocast::set_autocast_enabled(at::kCPU, true);
      const Tensor got = run(*single, {x.to(at::kFloat)}, {4, 1, 8}, &state);
      at::autocast::set_autocast_enabled(at::kCPU, false);
      at::autocast::clear_cache();
      EXPECT_LE(distance(got.to(at::kDouble), want), 0.15);
      for (const auto& [name, tensor] : state.tensors)
        if (tensor.is_floating_point()) EXPECT_EQ(tensor.scalar_type(), at::kFloat) << name;
    }
}

TEST(Attention, DropoutComesFromTheSeedAlone) {
  const auto branch = make_attention("dropout = 0.5", 8, 2);
  const Sequence s{normal({1, 9, 8}, 35)};
  const Tensor a = run(*branch, s, {9}, nullptr, 1);
  EXPECT_EQ(distance(a, run(*branch, s, {9}, nullptr, 1)), 0);
  EXPECT_GT(distance(a, run(*branch, s, {9}, nullptr, 2)), 1e-3);
  branch->eval();
  EXPECT_EQ(distance(run(*branch, s, {9}, nullptr, 1), run(*branch, s, {9}, nullptr, 2)), 0);
}

TEST(Attention, RefusesWhatCannotBe) {
  const auto message = [](const std::function<void()>& act) {
    try {
      act();
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string("nothing");
  };
  EXPECT_EQ(message([] { make_attention("", 10, 4); }),
            "[attention.heads] expected a divisor of the width 10; found 4");
  EXPECT_EQ(message([] { make_attention("groups = 3", 8, 4); }),
            "[attention.groups] expected a divisor of the heads 4; found 3");
  EXPECT_NE(message([] { make_attention("qk = [\"roppe\"]", 8, 2); }).find("did you mean rope?"), std::string::npos);
  const auto full = make_attention("pattern = \"full\"", 8, 2);
  EXPECT_EQ(message([&] {
              run(*full, {normal({1, 4, 8}, 1)}, {2, 2});
            }),
            "[attention.pattern] expected a causal pattern where a state is carried; found full");
  EXPECT_FALSE(full->traits().streams);
  EXPECT_NE(full->traits().why_not, "");
  EXPECT_EQ(run(*full, {normal({1, 4, 8}, 1)}, {4}).size(1), 4);
}

TEST(Attention, NamesOfParameters) {
  const auto branch = make_attention("qk = [\"xl_bias\"]\nscore = [\"xl\"]\nbias = true\nhead_width = 3", 8, 2);
  std::vector<std::string> names;
  for (const auto& p : branch->named_parameters()) names.push_back(p.key());
  std::sort(names.begin(), names.end());
  EXPECT_EQ(names, (std::vector<std::string>{"k.bias", "k.weight", "out.bias", "out.weight", "q.bias", "q.weight",
                                             "qk.0.u", "score.0.r.weight", "score.0.v", "v.bias", "v.weight"}));
  EXPECT_EQ(branch->q->weight.sizes(), (std::vector<int64_t>{6, 8}));
  EXPECT_EQ(branch->out->weight.sizes(), (std::vector<int64_t>{8, 6}));
}

TEST(Attention, FlopsCountVisibleKeys) {
  const auto causal = make_attention("", 8, 2), window = make_attention("pattern = \"causal & window(4)\"", 8, 2);
  const double projections = 4 * 2.0 * 8 * 8;
  EXPECT_EQ(causal->flops(3, 0), 3 * projections + 4 * 8 * (1 + 2 + 3));
  EXPECT_EQ(causal->flops(2, 10), 2 * projections + 4 * 8 * (11 + 12));
  EXPECT_EQ(window->flops(2, 10), 2 * projections + 4 * 8 * 8);
  EXPECT_EQ(make_attention("pattern = \"full\"", 8, 2)->flops(3, 0), 3 * projections + 4 * 8 * 9);
}

TEST(Attention, ExplainNamesTheOperator) {
  EXPECT_EQ(make_attention("score = [\"xl\"]", 8, 2)->explain().rfind("attend(causal), tiled", 0), 0u);
  const auto like = at::TensorOptions().dtype(at::kFloat);
  EXPECT_EQ(make_attention("qk = [\"rope\"]", 32, 2, like)->explain(), "attend(causal), fused");
  EXPECT_EQ(make_attention("qk = [{ kind = \"rerope\", window = 8 }]", 32, 2, like.device(at::kMeta))
                ->explain()
                .rfind("attend(causal)", 0),
            0u);
}

}  // namespace
}  // namespace kinfolk
