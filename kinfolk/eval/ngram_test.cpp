#include "kinfolk/eval/ngram.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <string>

#include "kinfolk/core/errors.h"

namespace kinfolk {
namespace {

std::span<const uint8_t> bytes(const std::string& text) {
  return {reinterpret_cast<const uint8_t*>(text.data()), text.size()};
}

TEST(Ngram, ProbabilitiesSumToOne) {
  std::mt19937 random(3);
  std::string text(20000, '\0');
  for (char& c : text)
    c = static_cast<char>(random() % (1 + random() % 250));  // skewed, bytes 0 and above 127 included
  for (int order : {0, 1, 2, 3, 6}) {
    NgramModel model(order);
    model.train(text);
    for (int trial = 0; trial < 60; ++trial) {
      std::string context(trial % 8, '\0');
      const size_t at = random() % (text.size() - 10);
      for (size_t i = 0; i < context.size(); ++i)
        context[i] = trial % 2 ? text[at + i] : static_cast<char>(random());  // seen and mostly unseen ones
      double sum = 0;
      for (int next = 0; next < 256; ++next) sum += model.probability(bytes(context), static_cast<uint8_t>(next));
      EXPECT_NEAR(sum, 1, 1e-12) << "order " << order;
    }
  }
}

TEST(Ngram, ByHand) {
  NgramModel model(1);
  model.train(std::string("aab"));
  // Order 0: a twice, b once, 3 bytes, 2 types. P0(a) = (2 + 2/256) / 5, P0(b) = (1 + 2/256) / 5.
  const double a = (2 + 2 / 256.) / 5, b = (1 + 2 / 256.) / 5;
  EXPECT_DOUBLE_EQ(model.probability({}, 'a'), a);
  EXPECT_DOUBLE_EQ(model.probability({}, 'z'), 2 / 256. / 5);
  // After a: a once, b once, 2 types. P1(b | a) = (1 + 2 P0(b)) / 4.
  EXPECT_DOUBLE_EQ(model.probability(bytes("za"), 'b'), (1 + 2 * b) / 4);
  // b was never followed by anything: order 0.
  EXPECT_DOUBLE_EQ(model.probability(bytes("b"), 'a'), a);
  EXPECT_DOUBLE_EQ(model.bits(std::string("ab")), -(std::log2(a) + std::log2((1 + 2 * b) / 4)) / 2);
}

TEST(Ngram, UntrainedIsUniformAndEmptyIsZero) {
  EXPECT_DOUBLE_EQ(NgramModel(3).bits(std::string("text")), 8);
  EXPECT_EQ(NgramModel(3).bits(std::string()), 0);
}

TEST(Ngram, NoContextAcrossTexts) {
  NgramModel two(1);
  two.train(std::string("x"));
  two.train(std::string("y"));
  NgramModel one(1);
  one.train(std::string("xy"));
  EXPECT_LT(two.probability(bytes("x"), 'y'), one.probability(bytes("x"), 'y'));
}

TEST(Ngram, SymbolsAndContextsGivenOneByOne) {
  const std::string text = "abacabadabacaba";
  NgramModel whole(2, 5), single(2, 5);
  whole.train(text);
  for (size_t i = 0; i < text.size(); ++i) {
    const size_t from = i < 2 ? 0 : i - 2;
    const std::vector<uint8_t> context(text.begin() + static_cast<int64_t>(from),
                                       text.begin() + static_cast<int64_t>(i));
    single.add(context, static_cast<uint8_t>(text[i]));
  }
  EXPECT_DOUBLE_EQ(whole.bits(text), single.bits(text));
  EXPECT_LT(whole.bits(text), NgramModel(2).bits(text));
  EXPECT_DOUBLE_EQ(NgramModel(1, 16).bits(text), 4);
  EXPECT_THROW(NgramModel(1, 0), UsageError);
  EXPECT_THROW(NgramModel(1, 257), UsageError);
}

TEST(Ngram, LongerContextsHelpOnStructuredText) {
  std::string text;
  std::mt19937 random(5);
  const char* words[] = {"alpha ", "beta ", "gamma ", "delta "};
  while (text.size() < 100000) text += words[random() % 4];
  const std::string train = text.substr(0, 90000), held_out = text.substr(90000);
  double before = 8;
  for (int order = 0; order <= 3; ++order) {
    NgramModel model(order);
    model.train(train);
    const double bits = model.bits(held_out);
    EXPECT_LT(bits, before) << order;
    before = bits;
  }
  // The text has 2 bits a word of 5.75 bytes: no model may be better than its entropy.
  EXPECT_GT(before, 2 / 5.75 * 0.98);
}

TEST(Ngram, OrderIsChecked) {
  EXPECT_THROW(NgramModel(-1), UsageError);
  EXPECT_THROW(NgramModel(7), UsageError);
}

}  // namespace
}  // namespace kinfolk
