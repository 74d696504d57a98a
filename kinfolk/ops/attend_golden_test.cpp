// Rows of golden cases that are attention with a pattern and nothing else: numbers of independent programs.
#include <gtest/gtest.h>

#include "kinfolk/core/errors.h"
#include "kinfolk/pattern/draw.h"
#include "kinfolk/reference/golden.h"
#include "tests/support/attend_problem.h"

namespace kinfolk {
namespace {

void expect_case(const golden::Case& one, const std::string& pattern) {
  for (const auto type : {at::kDouble, at::kFloat})
    for (const bool plain : {true, false}) {
      Problem p;
      const Tensor q = one.at("in.q").to(type), k = one.at("in.k").to(type), v = one.at("in.v").to(type);
      p.type = type, p.pattern = pattern;
      p.batch = q.size(0), p.heads = p.groups = q.size(1), p.length = q.size(2), p.width = q.size(3);
      p.make(k.size(2));
      p.plan.query_tile = 5, p.plan.key_tile = 7;
      p.q[0].q = q, p.bands[0][0].k = k, p.keys[0].v = v;
      for (const auto& leaf : {q, k, v}) leaf.requires_grad_(true);
      const Tensor out = p.run(plain).out;
      golden::expect_close(out, one.at("out.o"), one, "o");
      const auto gradients = torch::autograd::grad({out}, {q, k, v}, {one.at("cot.o").to(type)});
      golden::expect_gradient(gradients[0], one.at("grad.in.q"), one, "gradient of q");
      golden::expect_gradient(gradients[1], one.at("grad.in.k"), one, "gradient of k");
      golden::expect_gradient(gradients[2], one.at("grad.in.v"), one, "gradient of v");
      if (one.has("out.mask")) {
        const Tensor want = one.at("out.mask").to(at::kBool);
        ASSERT_EQ(want.size(0), 1) << one.name << ": masks that differ between heads";
        EXPECT_TRUE(at::equal(p.seen(0).select(0, 0), want)) << one.name;
        if (p.length == k.size(2)) {
          EXPECT_TRUE(at::equal(draw_matrix(*parse_pattern(pattern), p.length), want[0])) << one.name;
        }
      }
    }
}

/// The pattern that a case's config names; fails on names that this row should not have.
std::string pattern_of(const golden::Case& one) {
  const std::string name = one.config.at("pattern");
  if (name == "causal") return "causal";
  if (name == "sliding_window") {  // bidirectional cases write |i-j| <= w, which is w + 1 of ours
    const int64_t w = one.config.at("w");
    return one.config.at("causal").get<bool>() ? text("causal & window(", w, ")") : text("window(", w + 1, ")");
  }
  if (name == "hwfa") {
    const int64_t layer = one.config.at("layer"), layers = one.config.at("layers"), w = one.config.at("w");
    return layer < layers - 1 ? text("causal & window(", w, ")") : std::string("causal");
  }
  fail(one.name, ": no pattern for ", name);
}

TEST(AttendGolden, Sdpa) {
  for (const auto& one : golden::cases("attention/sdpa"))
    expect_case(one, one.config.at("causal").get<bool>() ? "causal" : "full");
}
TEST(AttendGolden, Causal) {
  for (const auto& one : golden::cases("attention/causal")) expect_case(one, pattern_of(one));
}
TEST(AttendGolden, SlidingWindow) {
  for (const auto& one : golden::cases("attention/sliding_window")) expect_case(one, pattern_of(one));
}
TEST(AttendGolden, Hwfa) {
  for (const auto& one : golden::cases("attention/hwfa")) expect_case(one, pattern_of(one));
}

}  // namespace
}  // namespace kinfolk
