#include "kinfolk/train/data/lanes.h"

#include <gtest/gtest.h>

#include "kinfolk/core/errors.h"

namespace kinfolk {
namespace {

Text counting(int64_t size, std::vector<int64_t> ends = {}) {
  Text text;
  for (int64_t i = 0; i < size; ++i) text.bytes.push_back(static_cast<uint8_t>(i));
  ends.push_back(size);
  int64_t begin = 0;
  for (const int64_t end : ends) text.documents.push_back({"", begin, end}), begin = end;
  return text;
}

TEST(Lanes, ReadsARing) {
  const Text text = counting(11);
  Lanes lanes(text, 2, 4);  // lane 1 starts at byte 5
  EXPECT_EQ(lanes.pass(), 5);
  std::vector<int64_t> seen[2];
  for (int step = 0; step < 6; ++step) {
    const Batch batch = lanes.next();
    const Tensor target = batch.fact("target");
    EXPECT_TRUE(batch.fact("place").equal(batch.tokens));  // byte i of this text is i
    for (int lane = 0; lane < 2; ++lane)
      for (int i = 0; i < 4; ++i) {
        seen[lane].push_back(batch.tokens[lane][i].item<int64_t>());
        EXPECT_EQ(target[lane][i].item<int64_t>(), (seen[lane].back() + 1) % 11);
      }
  }
  for (int64_t i = 0; i < 24; ++i) {
    EXPECT_EQ(seen[0][static_cast<size_t>(i)], i % 11);
    EXPECT_EQ(seen[1][static_cast<size_t>(i)], (5 + i) % 11);
  }
}

TEST(Lanes, ResumedOrderIsTheUninterruptedOne) {
  const Text text = counting(200, {70, 71, 150});
  Lanes whole(text, 3, 7, true), before(text, 3, 7, true);
  std::vector<Batch> expected;
  for (int i = 0; i < 40; ++i) expected.push_back(whole.next());  // more than four passes
  for (int i = 0; i < 9; ++i) before.next();
  Lanes after(text, 3, 7, true);
  after.seek(before.position());
  for (int i = 9; i < 40; ++i) {
    const Batch batch = after.next();
    EXPECT_TRUE(batch.tokens.equal(expected[static_cast<size_t>(i)].tokens)) << i;
    for (const char* fact : {"target", "segment"}) {
      EXPECT_TRUE(batch.fact(fact).equal(expected[static_cast<size_t>(i)].fact(fact))) << i << fact;
    }
  }
}

TEST(Lanes, MarksDocuments) {
  const Text text = counting(10, {3, 4});
  const Batch batch = Lanes(text, 1, 9, true).at(7);  // 7 8 9 | 0 1 2 | 3 | 4 5
  EXPECT_TRUE(batch.fact("segment").equal(at::tensor({2, 2, 2, 3, 3, 3, 4, 5, 5}, at::kLong).view({1, 9})));
  EXPECT_TRUE(batch.fact("target").equal(at::tensor({8, 9, -100, 1, 2, -100, -100, 5, 6}, at::kLong).view({1, 9})));
  EXPECT_FALSE(Lanes(text, 1, 9).next().fact("segment").defined());
}

TEST(Lanes, RefusesWhatIsTooSmall) {
  const Text text = counting(16);
  EXPECT_NO_THROW(Lanes(text, 3, 5));
  try {
    Lanes(text, 4, 4);
    FAIL();
  } catch (const UsageError& error) {
    EXPECT_STREQ(error.what(),
                 "[data] expected at least 4 lanes x 4 tokens + 1 bytes; found 16 (fewer lanes, a shorter length or "
                 "more text)");
  }
  EXPECT_THROW(Lanes(text, 0, 4), UsageError);
  EXPECT_THROW(Lanes(text, std::numeric_limits<int64_t>::max(), 4), UsageError);
}

}  // namespace
}  // namespace kinfolk
