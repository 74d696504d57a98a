#include "kinfolk/eval/perplexity.h"

#include <gtest/gtest.h>

#include "kinfolk/core/errors.h"
#include "kinfolk/eval/remember.h"
#include "kinfolk/nn/head/knn_lm.h"
#include "kinfolk/nn/testing.h"

namespace kinfolk {
namespace {

Bytes some_bytes(size_t count, int64_t below = 29) {
  Bytes out;
  for (uint32_t state = 5; out.size() < count;) {
    state = state * 1664525u + 1013904223u;
    out.push_back(static_cast<uint8_t>((state >> 20) % static_cast<uint32_t>(below)));
  }
  return out;
}

ScoreOptions options_of(std::vector<int64_t> lengths, int64_t tokens, const std::string& mode = "auto") {
  ScoreOptions options;
  options.lengths = std::move(lengths), options.tokens = tokens, options.mode = mode;
  return options;
}

Bytes part(const Bytes& text, int64_t from, int64_t count) {
  return {text.begin() + from, text.begin() + from + count};
}

TEST(Score, UniformModelHasLog2V) {
  const auto model = tiny("rope");
  {
    at::NoGradGuard no_grad;
    for (auto& parameter : model->parameters()) parameter.zero_();
  }
  const Scores scores = score(*model, some_bytes(3000), options_of({32, 500}, 1000));
  for (const auto& s : scores.lengths) {
    EXPECT_NEAR(s.bits, std::log2(29.0), 1e-6);
    EXPECT_NEAR(s.error, 0, 1e-7);
    EXPECT_EQ(s.mode, "stream");
  }
  EXPECT_EQ(scores.lengths[0].tokens, 31 * 32);
  EXPECT_EQ(scores.lengths[1].tokens, 2 * 500);
  for (const auto& p : scores.positions) EXPECT_NEAR(p.bits, std::log2(29.0), 1e-6);
}

TEST(Score, RefusesAMemberThatSeesWhatItIsAskedFor) {
  const auto model = tiny("linformer");
  EXPECT_THROW(score(*model, some_bytes(300), options_of({32}, 64)), UsageError);
}

TEST(Score, IsTheMeanOfMinusLog2P) {
  const auto model = tiny("rope");
  const Bytes text = some_bytes(41);
  const Tensor tokens = gather_tokens(text, {0}, 0, 41);
  const Tensor log_p = model->score({tokens.narrow(1, 0, 40), {}}).to(at::kDouble).log_softmax(-1);
  const double expected =
      -log_p.gather(-1, tokens.narrow(1, 1, 40).unsqueeze(-1)).mean().item<double>() / std::log(2.0);
  const Scores scores = score(*model, text, options_of({40}, 40));
  EXPECT_NEAR(scores.lengths[0].bits, expected, 1e-5);
  EXPECT_TRUE(std::isnan(scores.lengths[0].error)) << "one window has no spread";
}

TEST(Score, ChunksAndLanesChangeNothing) {
  const Bytes text = some_bytes(1200);
  for (const char* name : {"rope", "window", "transformer_xl", "deltanet", "lstm", "universal"}) {
    SCOPED_TRACE(name);
    const auto model = tiny(name);
    ScoreOptions options = options_of({150}, 600);
    const double whole = score(*model, text, options).lengths[0].bits;
    for (const int64_t chunk : {1, 7, 64}) {
      options.chunk = chunk;
      EXPECT_NEAR(score(*model, text, options).lengths[0].bits, whole, 1e-5);
    }
    options.lanes = 1;
    EXPECT_NEAR(score(*model, text, options).lengths[0].bits, whole, 1e-5);
  }
}

/// Windows of a study: those of all lengths end at the same places, and their ends are scored by themselves.
TEST(Score, WindowsThatEndTogether) {
  const auto model = tiny("rope");
  const Bytes text = some_bytes(1000);
  ScoreOptions options = options_of({40, 120}, 1);
  options.windows = 3, options.last = 16;
  const Scores scores = score(*model, text, options);
  ASSERT_EQ(scores.lengths.size(), 2u);
  for (const auto& s : scores.lengths) {
    EXPECT_EQ(s.tokens, 3 * s.length);
    ASSERT_EQ(s.last_bits.size(), 3u);
    ASSERT_EQ(s.each.size(), 3u);
    EXPECT_NEAR((s.each[0] + s.each[1] + s.each[2]) / 3, s.bits, 1e-12);
    for (int64_t w = 0; w < 3; ++w) {
      // The longest windows lie evenly in the text; the shorter ones are their ends.
      const int64_t end = (1000 - 121) / 2 * w + 120;
      const Tensor tokens = gather_tokens(text, {end - s.length}, 0, s.length + 1);
      const Tensor log_p =
          model->score({tokens.narrow(1, 0, s.length), {}}).to(at::kDouble).log_softmax(-1) / std::log(2.0);
      const Tensor bits = -log_p.gather(-1, tokens.narrow(1, 1, s.length).unsqueeze(-1)).flatten();
      EXPECT_NEAR(s.each[static_cast<size_t>(w)], bits.mean().item<double>(), 1e-5);
      EXPECT_NEAR(s.last_bits[static_cast<size_t>(w)], bits.slice(0, -16).mean().item<double>(), 1e-5);
    }
  }
  // Ends longer than the window are the window.
  options.lengths = {8};
  const LengthScore whole = score(*model, text, options).lengths[0];
  for (size_t w = 0; w < 3; ++w) EXPECT_DOUBLE_EQ(whole.last_bits[w], whole.each[w]);
  EXPECT_TRUE(score(*model, text, options_of({40}, 80)).lengths[0].last_bits.empty());
  options.windows = 112;
  EXPECT_THROW(score(*model, text, options), Error) << "more than lie side by side";
}

TEST(Score, BlocksStartAfresh) {
  const auto model = tiny("rope");  // trained on 96
  const Bytes text = some_bytes(400);
  const double one = score(*model, text, options_of({96}, 96, "stream")).lengths[0].bits;
  EXPECT_DOUBLE_EQ(score(*model, text, options_of({96}, 96, "blocks")).lengths[0].bits, one);
  const Scores two = score(*model, text, options_of({192}, 192, "blocks"));
  EXPECT_EQ(two.lengths[0].mode, "blocks of 96");
  const double next = score(*model, part(text, 96, 97), options_of({96}, 96)).lengths[0].bits;
  EXPECT_NEAR(two.lengths[0].bits, (one + next) / 2, 1e-6);
  EXPECT_GT(std::abs(score(*model, text, options_of({192}, 192, "stream")).lengths[0].bits - two.lengths[0].bits),
            1e-7);
  // Learned positions end: blocks by themselves.
  EXPECT_EQ(score(*tiny("gpt"), text, options_of({192}, 192)).lengths[0].mode, "blocks of 96");
}

TEST(Score, ErrorIsTheStandardErrorOverWindows) {
  const auto model = tiny("rope");
  const Bytes text = some_bytes(3 * 50 + 1 + 2);
  const Scores scores = score(*model, text, options_of({50}, 150));
  ASSERT_EQ(scores.lengths[0].tokens, 150);
  std::vector<double> each;
  for (const int64_t start : {0, 51, 102})
    each.push_back(score(*model, part(text, start, 51), options_of({50}, 50)).lengths[0].bits);
  const double mean = (each[0] + each[1] + each[2]) / 3;
  double squares = 0;
  for (const double value : each) squares += (value - mean) * (value - mean);
  EXPECT_NEAR(scores.lengths[0].bits, mean, 1e-6);
  EXPECT_NEAR(scores.lengths[0].error, std::sqrt(squares / 2 / 3), 1e-6);
}

TEST(Score, PositionsOfTheLongestLengthDouble) {
  const auto model = tiny("rope");
  const Scores scores = score(*model, some_bytes(500), options_of({20, 100, 50}, 400));
  ASSERT_EQ(scores.positions.size(), 4u);
  double sum = 0;
  int64_t at = 0;
  for (const auto& p : scores.positions) {
    EXPECT_EQ(p.from, at);
    sum += p.bits * static_cast<double>(p.to - p.from);
    at = p.to;
  }
  EXPECT_EQ(scores.positions[1].to, 32);
  EXPECT_EQ(at, 100);
  EXPECT_NEAR(sum / 100, scores.lengths[1].bits, 1e-9);
}

TEST(Score, ProgressGrowsToOne) {
  const auto model = tiny("lstm");
  ScoreOptions options = options_of({100, 30}, 200);
  options.chunk = 20;
  double last = 0;
  options.progress = [&](double share) {
    EXPECT_GE(share, last);
    last = share;
  };
  score(*model, some_bytes(1000), options);
  EXPECT_DOUBLE_EQ(last, 1);
}

TEST(Score, RefusesWhatCannotBeScored) {
  const auto rope = tiny("rope");
  const Bytes text = some_bytes(100);
  EXPECT_NO_THROW(score(*rope, text, options_of({99}, 1)));
  EXPECT_THROW(score(*rope, text, options_of({100}, 1)), Error);
  EXPECT_THROW(score(*rope, {}, options_of({1}, 1)), Error);
  EXPECT_THROW(score(*rope, text, options_of({0}, 1)), UsageError);
  EXPECT_THROW(score(*rope, text, options_of({}, 1)), UsageError);
  EXPECT_THROW(score(*rope, text, options_of({10}, 1, "steram")), UsageError);
  EXPECT_THROW(score(*tiny("gpt"), text, options_of({10}, 1, "stream")), UsageError);
  EXPECT_THROW(score(*rope, Bytes(100, 200), options_of({10}, 1)), Error) << "bytes beyond the vocabulary";
}

TEST(FillStore, HoldsHiddenStatesWithTheNextByte) {
  const auto model = tiny("knn_lm");
  auto& head = dynamic_cast<KnnLm&>(model->head());
  fill_store(*model, some_bytes(1), 100);
  EXPECT_EQ(head.stored(), 0);
  const Bytes text = some_bytes(401);
  fill_store(*model, text, 1000);
  EXPECT_EQ(head.stored(), 400);
  // A context that is in the store is followed by what followed it there.
  const Tensor tokens = gather_tokens(text, {0}, 0, 40);
  const Batch batch{tokens.narrow(1, 0, 30), {}};
  Pass pass{batch};
  const Tensor said = head.neighbours_say(model->hidden(pass).select(1, 29));  // [1, V]
  EXPECT_EQ(said.argmax().item<int64_t>(), tokens[0][30].item<int64_t>());
  head.forget();
  fill_store(*model, text, 50);
  EXPECT_EQ(head.stored(), 50);
}

}  // namespace
}  // namespace kinfolk
