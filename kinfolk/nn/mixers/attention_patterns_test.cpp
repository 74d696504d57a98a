// Attention branches with patterns that are no interval of distances, and with one a head.
#include "kinfolk/pattern/draw.h"
#include "kinfolk/pattern/heads.h"
#include "tests/support/attention.h"

namespace kinfolk {
namespace {
using namespace testing;

const std::vector<std::string> kCausal = {
    "pattern = \"causal & (window(3) | stride(4))\"",
    "pattern = \"causal & (block_local(4, 0) | fixed(4, 1))\"",
    "pattern = \"causal & block_local(3, 2)\"",
    "pattern = \"causal & dilated(2, 3)\"",
    "pattern = \"causal & local2d(3, 4, 2, 2, 1, 1, block)\"",
    "pattern = \"causal & (block_window(2, 1) | columns([0, 3]) | random(2, 1, 4))\"",
    "per_head = [\"causal & blocks(3, 9, 0)\", \"causal & blocks(3, 9, -1)\"]",
    "per_head = [\"causal & window(3)\", \"causal & dilated(2, 4)\"]",
};

double apart(const Tensor& a, const Tensor& b) { return (a - b).abs().max().item<double>(); }

TEST(AttentionPatterns, EverySplitGivesTheWhole) {
  for (const auto& pattern : kCausal)
    for (const char* scheme : {"", "qk = [\"rope\"]", "qk = [{ kind = \"rerope\", window = 4 }]", "score = [\"alibi\"]",
                               "qk = [\"xl_bias\"]\nscore = [\"xl\"]"})
      for (const char* memory : {"\"cache\"", "{ kind = \"segment\", segment = 4, memory = 30 }"}) {
        const auto branch = make_attention(pattern + "\n" + scheme + "\nmemory = " + memory, 8, 2);
        const std::string what = pattern + ", " + scheme + ", " + memory;
        ASSERT_TRUE(branch->traits().streams) << what;
        const Sequence s{normal({2, 17, 8}, 3)};
        const auto whole = run_with_gradients(*branch, s, {17});
        const bool cache = std::string(memory) == "\"cache\"";  // a segment's past is a constant in the gradient
        for (const auto& calls : std::vector<std::vector<int64_t>>{{9, 8}, {1, 16}, {5, 1, 4, 7}}) {
          const auto pieces = run_with_gradients(*branch, s, calls);
          EXPECT_LE(apart(pieces.out, whole.out), 1e-11) << what;
          for (const auto& [name, gradient] : whole.gradients)
            if (cache) EXPECT_LE(apart(pieces.gradients.at(name), gradient), 1e-10) << what << " " << name;
        }
        EXPECT_LE(apart(run(*branch, s, std::vector<int64_t>(17, 1)), whole.out), 1e-11) << what;
      }
}

// The cache of a pattern with a horizon keeps as many keys as a query can still see, and no more.
TEST(AttentionPatterns, RingsHoldWhatTheHorizonShows) {
  const std::vector<std::pair<std::string, int64_t>> bounded = {
      {"pattern = \"causal & window(5)\"", 5},
      {"pattern = \"causal & block_local(3, 2)\"", 5},
      {"pattern = \"causal & dilated(2, 3)\"", 6},
      {"pattern = \"causal & block_window(2, 1)\"", 4},
      {"pattern = \"causal & local2d(3, 4, 2, 2, 1, 1, raster)\"", 12},
      {"per_head = [\"causal & window(3)\", \"causal & dilated(2, 4)\"]", 8},
      {"per_head = [\"causal & blocks(3, 9, 0)\", \"causal & blocks(3, 9, -1)\"]", 6}};
  for (const auto& [pattern, horizon] : bounded) {
    const auto branch = make_attention(pattern, 8, 2);
    EXPECT_TRUE(branch->traits().bounded) << pattern;
    State state = branch->start(1, real());
    EXPECT_EQ(state.tensors.at("at").size(1), horizon - 1) << pattern;
    const int64_t bytes = state.bytes();
    run(*branch, {normal({1, 20, 8}, 4)}, {13, 1, 6}, &state);
    EXPECT_EQ(state.bytes(), bytes) << pattern;
  }
  for (const char* pattern :
       {"causal & stride(3)", "causal & fixed(3, 1)", "causal & columns(2)", "causal & random(2, 1, 1)"})
    EXPECT_FALSE(make_attention(text("pattern = \"", pattern, "\""), 8, 2)->traits().bounded) << pattern;
  EXPECT_FALSE(make_attention("per_head = [\"causal\", \"causal & window(2)\"]", 8, 2)->traits().bounded);
}

// Two heads: what each adds to the output is what a branch with its pattern alone adds there.
TEST(AttentionPatterns, HeadsSeeTheirOwn) {
  const Sequence s{normal({1, 11, 8}, 5)};
  const std::string first = "causal & stride(3)", second = "window(2)";
  const auto split = make_attention("per_head = [\"" + first + "\", \"" + second + "\"]", 8, 2);
  Tensor sum;
  for (int64_t head = 0; head < 2; ++head) {
    const auto alone = make_attention("pattern = \"" + (head ? second : first) + "\"", 8, 2);  // the same weights
    const at::NoGradGuard guard;
    alone->out->weight.slice(1, head ? 0 : 4, head ? 4 : 8).zero_();
    const Tensor part = run(*alone, s, {11});
    sum = sum.defined() ? sum + part : part;
  }
  EXPECT_LE(apart(run(*split, s, {11}), sum), 1e-12);
}

TEST(AttentionPatterns, FactsOfTheBatchAreRead) {
  const auto branch = make_attention("pattern = \"prefix(@prefix) | causal\"", 8, 2);
  const auto with = [&](const Tensor& x, std::map<std::string, Tensor> facts) {
    const Batch batch{at::zeros({x.size(0), x.size(1)}, at::kLong), std::move(facts)};
    Pass pass{.batch = batch};
    pass.position = at::arange(x.size(1), at::kLong).repeat({x.size(0), 1});
    return branch->forward(x, pass, nullptr);
  };
  const Tensor x = normal({2, 9, 8}, 6);
  const Tensor out = with(x, {{"prefix", at::tensor({4, 0}, at::kLong)}});
  const auto causal = make_attention("", 8, 2), fixed = make_attention("pattern = \"prefix(4) | causal\"", 8, 2);
  EXPECT_LE(apart(out[0], run(*fixed, {x}, {9})[0]), 1e-12);
  EXPECT_LE(apart(out[1], run(*causal, {x}, {9})[1]), 1e-12);
  EXPECT_THROW(with(x, {{"prefix", at::tensor({4, 0, 1}, at::kLong)}}), Error);
  EXPECT_LE(apart(with(x, {}), run(*causal, {x}, {9})), 1e-12);
  EXPECT_GT(apart(out[0], run(*causal, {x}, {9})[0]), 1e-3);
}

TEST(AttentionPatterns, FlopsCountWhatIsSeen) {
  const double projections = 4 * 2.0 * 8 * 8;
  for (const char* words : {"causal & (window(3) | stride(4))", "causal & fixed(5, 2)", "block_local(4, 1)",
                            "causal & blocks(3, 9, -1)", "dilated(2, 3)"}) {
    const auto branch = make_attention(text("pattern = \"", words, "\""), 8, 2);
    const double pairs = draw_matrix(*parse_pattern(words), 21).sum().item<double>();
    EXPECT_EQ(branch->flops(21, 0), 21 * projections + 4 * 8 * pairs) << words;
  }
  // Beyond 512 queries some stand for the others.
  const HeadPatterns strided{{parse_pattern("causal & (window(17) | stride(16))")}};
  const double pairs = draw_matrix(*strided.each[0], 3000).sum().item<double>();
  EXPECT_NEAR(strided.pairs(0, 3000, [](int64_t t) { return t + 1; }) / pairs, 1, 0.01);
}

TEST(AttentionPatterns, RefusesWhatCannotBe) {
  const auto message = [](const std::string& options) {
    try {
      make_attention(options, 8, 4);
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string("nothing");
  };
  EXPECT_EQ(message("per_head = [\"causal\", \"full\", \"causal\"]"),
            "[attention.per_head] expected patterns in a number that divides 4 heads; found 3");
  EXPECT_EQ(message("pattern = \"full\"\nper_head = [\"causal\"]"),
            "[attention.per_head] expected pattern or per_head; found both");
  const std::string zeros = "\nmemory = { kind = \"segment\", segment = 4, memory = 3, start = \"zeros\" }";
  EXPECT_NE(message("pattern = \"causal & fixed(3, 1)\"" + zeros).find("[attention.memory.start] expected empty"),
            std::string::npos);
  EXPECT_EQ(message("pattern = \"causal & stride(3)\"" + zeros), "nothing");
}

}  // namespace
}  // namespace kinfolk
