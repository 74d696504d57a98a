// Decoding with every recurrent mixer: float32, without gradients, where steps run in kernels and write into the state.
#include <gtest/gtest.h>

#include "tests/support/mixer_laws.h"

namespace kinfolk {
namespace {
using reference::walk;

constexpr int64_t kWidth = 32, kHeads = 2;

/// What is built, as a recipe says it.
const std::map<std::string, std::string>& mixers() {
  static const std::map<std::string, std::string> all{
      {"linear", "kind = \"linear\""},
      {"linear_identity", "kind = \"linear\"\nfeature = \"identity\"\nnormalise = false"},
      {"retention", "kind = \"retention\""},
      {"gated_retention", "kind = \"gated_retention\""},
      {"gla", "kind = \"gla\""},
      {"reflection", "kind = \"reflection\""},
      {"rwkv6", "kind = \"rwkv6\""},
      {"delta", "kind = \"delta\""},
      {"delta_without_conv", "kind = \"delta\"\nconv = 0"},
      {"gated_delta", "kind = \"gated_delta\""},
      {"mamba", "kind = \"mamba\""},
      {"mamba2", "kind = \"mamba2\""},
      {"hgrn", "kind = \"hgrn\""},
      {"rg_lru", "kind = \"rg_lru\""},
      {"lstm", "kind = \"lstm\""},
      {"recurrent", "kind = \"recurrent\""}};
  return all;
}

std::shared_ptr<Branch> make(const std::string& name, at::ScalarType type, int64_t width = kWidth) {
  Context context = reference::small_context(width, kHeads, type);
  context.size.depth = 2;
  const Value table = parse_toml(mixers().at(name), name);
  return registry<Branch>().create(Spec(table), context, "mixer");
}

struct Decode : testing::TestWithParam<std::string> {
  const at::NoGradGuard guard;
};
std::vector<std::string> names() {
  std::vector<std::string> out;
  for (const auto& [name, toml] : mixers()) out.push_back(name);
  return out;
}
INSTANTIATE_TEST_SUITE_P(All, Decode, testing::ValuesIn(names()), [](const auto& info) { return info.param; });

std::vector<int64_t> ones(int64_t n) { return std::vector<int64_t>(static_cast<size_t>(n), 1); }

// Every split point of 130 tokens, and prompts shorter than a convolution before single tokens.
TEST_P(Decode, EverySplitAndEveryPromptGivesTheWhole) {
  for (const int64_t width : {kWidth, int64_t{12}}) {
    const auto mixer = make(GetParam(), at::kFloat, width);
    at::manual_seed(1);
    const Tensor x = at::randn({2, 130, width});
    State last = mixer->start(2, x.options());
    const Tensor whole = walk(*mixer, x, {130}, &last);
    reference::expect_near(walk(*mixer, x, {}, nullptr), whole, 1e-5, "without a state");
    const auto check = [&](const std::vector<int64_t>& pieces, const std::string& what) {
      State state = mixer->start(2, x.options());
      reference::expect_near(walk(*mixer, x, pieces, &state), whole, 2e-5, what);
      for (const auto& [name, tensor] : last.flat()) {
        EXPECT_EQ(state.flat().at(name).scalar_type(), tensor.scalar_type()) << what;
        reference::expect_near(state.flat().at(name), tensor, 2e-5, what + " " + name);
      }
    };
    for (int64_t split = 1; split < 130; split++) check({split, 130 - split}, text("split ", split));
    for (const int64_t prompt : {0, 1, 2, 3, 63, 64, 65}) {
      std::vector<int64_t> pieces = ones(130 - prompt);
      if (prompt > 0) pieces.insert(pieces.begin(), prompt);
      check(pieces, text("prompt of ", prompt));
    }
  }
}

// Prompts of 3 and 11 tokens, left-padded into one batch, then single tokens.
TEST_P(Decode, LeftPaddingIsAsIfAlone) {
  const auto mixer = make(GetParam(), at::kFloat);
  at::manual_seed(2);
  const Tensor x = at::randn({2, 16, kWidth});
  reference::Lanes lanes{at::ones({2, 16}, at::kBool), {}};
  lanes.valid[0].narrow(0, 0, 8).fill_(false);
  State state = mixer->start(2, x.options()), alone = mixer->start(1, x.options());
  const Tensor got = walk(*mixer, x, {11, 1, 1, 1, 1, 1}, &state, Form::automatic, lanes);
  EXPECT_EQ(got[0].narrow(0, 0, 8).abs().max().item<double>(), 0);
  const Tensor first = walk(*mixer, x.narrow(0, 0, 1).narrow(1, 8, 8), {3, 1, 1, 1, 1, 1}, &alone);
  reference::expect_near(got.narrow(0, 0, 1).narrow(1, 8, 8), first, 1e-5, "short lane");
  for (const auto& [name, tensor] : state.flat())
    reference::expect_near(tensor[0], alone.flat().at(name)[0], 1e-5, name);
  reference::expect_near(got[1], walk(*mixer, x.narrow(0, 1, 1), {}, nullptr)[0], 1e-5, "long lane");
}

// Masked single tokens, and three in the middle of a call: the state passes through, whatever they hold.
TEST_P(Decode, MaskedTokensLeaveTheState) {
  const auto mixer = make(GetParam(), at::kFloat);
  at::manual_seed(3);
  const Tensor x = at::randn({1, 20, kWidth});
  reference::Lanes lanes{at::ones({1, 20}, at::kBool), {}};
  lanes.valid.narrow(1, 8, 3).fill_(false);
  const Tensor cut = at::cat({x.narrow(1, 0, 8), x.narrow(1, 11, 9)}, 1), plain = walk(*mixer, cut, {}, nullptr);
  for (const double other : {0.0, 1e6, static_cast<double>(NAN)}) {
    Tensor changed = x.clone();
    changed.narrow(1, 8, 3).fill_(other);
    for (const auto& pieces : {std::vector<int64_t>{20}, ones(20)}) {
      State state = mixer->start(1, x.options());
      const Tensor got = walk(*mixer, changed, pieces, &state, Form::automatic, lanes);
      reference::expect_near(got.narrow(1, 0, 8), plain.narrow(1, 0, 8), 1e-5, "before the gap");
      reference::expect_near(got.narrow(1, 11, 9), plain.narrow(1, 8, 9), 1e-5, "after the gap");
    }
  }
}

TEST_P(Decode, DocumentsAreApart) {
  const auto mixer = make(GetParam(), at::kFloat);
  at::manual_seed(4);
  const Tensor x = at::randn({1, 40, kWidth});
  reference::Lanes lanes{{}, at::zeros({1, 40}, at::kBool)};
  lanes.first[0][17].fill_(true);
  for (const auto& pieces : {std::vector<int64_t>{40}, ones(40)}) {
    State state = mixer->start(1, x.options());
    const Tensor got = walk(*mixer, x, pieces, &state, Form::automatic, lanes);
    reference::expect_near(got.narrow(1, 0, 17), walk(*mixer, x.narrow(1, 0, 17), {}, nullptr), 1e-5, "first");
    reference::expect_near(got.narrow(1, 17, 23), walk(*mixer, x.narrow(1, 17, 23), {}, nullptr), 1e-5, "second");
  }
}

// A state that somebody else holds is not written to; one that nobody else holds costs no new memory.
TEST_P(Decode, AStateThatIsSharedStaysAsItWas) {
  const auto mixer = make(GetParam(), at::kFloat);
  at::manual_seed(5);
  const Tensor x = at::randn({1, 6, kWidth});
  State state = mixer->start(1, x.options());
  walk(*mixer, x.narrow(1, 0, 3), {3}, &state);
  const State kept = state.clone();
  State other = state;  // the same tensors
  walk(*mixer, x.narrow(1, 3, 3), {1, 1, 1}, &other);
  for (const auto& [name, tensor] : state.flat()) EXPECT_TRUE(tensor.equal(kept.flat().at(name))) << name;
  State again = state;
  const Tensor view = again.tensors.begin()->second.narrow(0, 0, 1);
  again = State{};
  walk(*mixer, x.narrow(1, 3, 3), {1, 1, 1}, &state);
  EXPECT_TRUE(view.equal(kept.tensors.begin()->second));
}

// Very strong gates: finite, and the steps equal the chunks.
TEST_P(Decode, StrongGatesStayFinite) {
  const auto mixer = make(GetParam(), at::kFloat);
  at::manual_seed(6);
  for (const auto& entry : mixer->named_parameters()) {
    if (entry.key().find("decay") == std::string::npos || entry.key().find("bias") == std::string::npos) continue;
    const Tensor pick = at::rand(entry.value().sizes());
    entry.value().copy_(at::where(pick > 0.5, at::full_like(pick, 60), at::full_like(pick, -60)));
  }
  const Tensor x = at::randn({1, 130, kWidth}) * 3;
  State state = mixer->start(1, x.options());
  const Tensor steps = walk(*mixer, x, ones(130), &state), whole = walk(*mixer, x, {}, nullptr);
  reference::expect_near(steps, whole, 5e-5, "steps");
  const at::AutoGradMode on(true);
  const Tensor in = reference::leaf(x);
  const Tensor grad = reference::gradients({walk(*mixer, in, {}, nullptr)}, {at::ones_like(x)}, {in})[0];
  EXPECT_TRUE(grad.isfinite().all().item<bool>());
}

TEST(DecodeInPlace, AStepOfAnOwnedStateAllocatesNoState) {
  const at::NoGradGuard guard;
  for (const std::string name : {"retention", "gla", "reflection", "delta", "gated_delta", "mamba", "mamba2", "hgrn",
                                 "rg_lru", "rwkv6", "linear"}) {
    const auto mixer = make(name, at::kFloat);
    const Tensor x = at::randn({1, 8, kWidth});
    State state = mixer->start(1, x.options());
    walk(*mixer, x.narrow(1, 0, 4), {3, 1}, &state);
    std::map<std::string, const void*> before;
    for (const auto& [key, tensor] : state.tensors) before[key] = tensor.data_ptr();
    walk(*mixer, x.narrow(1, 4, 4), {1, 1, 1, 1}, &state);
    for (const auto& [key, tensor] : state.tensors) {
      if (name == "rwkv6" && key == "past") continue;  // one token, which is new each time
      EXPECT_EQ(tensor.data_ptr(), before.at(key)) << name << " " << key;
    }
  }
}

}  // namespace
}  // namespace kinfolk
