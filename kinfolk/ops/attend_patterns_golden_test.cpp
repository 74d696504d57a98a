// Golden rows of patterns: masks exact, outputs and gradients within their tolerance, by views and in tiles.
#include <gtest/gtest.h>

#include "kinfolk/core/errors.h"
#include "kinfolk/pattern/draw.h"
#include "kinfolk/reference/golden.h"
#include "tests/support/attend_problem.h"

namespace kinfolk {
namespace {

void expect_patterns(const golden::Case& one, const std::vector<std::string>& per_head) {
  const Tensor mask = one.at("out.mask").to(at::kBool);  // [H or 1, Lq, Lk]
  const int64_t heads = one.at("in.q").size(1);
  for (int64_t h = 0; h < mask.size(0); ++h) {
    const auto pattern = parse_pattern(per_head[static_cast<size_t>(h) % per_head.size()]);
    EXPECT_TRUE(draw_matrix(*pattern, mask.size(1)).equal(mask[h]))
        << one.name << ", head " << h << "\n"
        << draw_text(*pattern, mask.size(1)) << draw_text(mask[h], "wanted");
  }
  for (const auto type : {at::kDouble, at::kFloat})
    for (const auto by : {AttendPlan::By::views, AttendPlan::By::tiles, AttendPlan::By::automatic}) {
      Problem p;
      const Tensor q = one.at("in.q").to(type), k = one.at("in.k").to(type), v = one.at("in.v").to(type);
      p.type = type, p.batch = q.size(0), p.heads = p.groups = heads, p.length = q.size(2), p.width = q.size(3);
      p.per_head = per_head;
      if (per_head.size() == 1) p.pattern = per_head[0], p.per_head.clear();
      p.make(k.size(2));
      p.plan.query_tile = 5, p.plan.key_tile = 7, p.plan.by = by;
      p.q[0].q = q, p.bands[0][0].k = k, p.keys[0].v = v;
      for (const auto& leaf : {q, k, v}) leaf.requires_grad_(true);
      const Tensor out = p.run(false).out;
      golden::expect_close(out, one.at("out.o"), one, "o");
      const auto gradients = torch::autograd::grad({out}, {q, k, v}, {one.at("cot.o").to(type)});
      golden::expect_gradient(gradients[0], one.at("grad.in.q"), one, "gradient of q");
      golden::expect_gradient(gradients[1], one.at("grad.in.k"), one, "gradient of k");
      golden::expect_gradient(gradients[2], one.at("grad.in.v"), one, "gradient of v");
    }
}

void expect_row(const std::string& row, const std::function<std::vector<std::string>(const golden::Case&)>& patterns) {
  for (const auto& one : golden::cases("attention/" + row)) {
    SCOPED_TRACE(row + " " + one.name);
    expect_patterns(one, patterns(one));
  }
}

std::string causal(const golden::Case& one, const std::string& pattern) {
  return one.config.at("causal").get<bool>() ? "causal & (" + pattern + ")" : pattern;
}
int64_t number(const golden::Case& one, const char* key) { return one.config.at(key).get<int64_t>(); }

/// The three uses of the halves of Child et al. (2019).
std::vector<std::string> halves(const golden::Case& one, const std::string& first, const std::string& second) {
  const std::string mode = one.config.at("mode");
  const std::string a = "causal & " + first, b = "causal & " + second;
  if (mode == "split") return {a, b};
  if (mode == "merged") return {"causal & (" + first + " | " + second + ")"};
  if (mode == "interleaved") return {number(one, "layer") % 2 ? b : a};
  fail(one.name, ": no use of halves called ", mode);
}

TEST(PatternGolden, PrefixLm) {
  expect_row("prefix_lm", [](const golden::Case& one) -> std::vector<std::string> {
    return {text("prefix(", number(one, "prefix"), ") | causal")};
  });
}
TEST(PatternGolden, DilatedWindow) {
  expect_row("dilated_window", [](const golden::Case& one) -> std::vector<std::string> {
    return {causal(one, text("dilated(", number(one, "w") + 1, ", ", number(one, "dilation"), ")"))};
  });
}
TEST(PatternGolden, BlockLocal1d) {
  expect_row("block_local_1d", [](const golden::Case& one) -> std::vector<std::string> {
    return {text("causal & block_local(", number(one, "lq"), ", ", number(one, "lm"), ")")};
  });
}
/// Pixels in the order of their blocks, by their numbers in raster order.
Tensor by_block(int64_t height, int64_t width, int64_t qh, int64_t qw) {
  std::vector<int64_t> order;
  for (int64_t top = 0; top < height; top += qh)
    for (int64_t left = 0; left < width; left += qw)
      for (int64_t y = top; y < std::min(height, top + qh); ++y)
        for (int64_t x = left; x < std::min(width, left + qw); ++x) order.push_back(y * width + x);
  return at::tensor(order, at::kLong);
}

// The cases number pixels in raster order; a sequence of ours has them in the order in which they are generated.
TEST(PatternGolden, Local2d) {
  for (auto one : golden::cases("attention/local_2d")) {
    SCOPED_TRACE(one.name);
    const std::string kind = one.config.at("order");
    if (kind == "block") {
      const Tensor order = by_block(number(one, "height"), number(one, "width"), number(one, "qh"), number(one, "qw"));
      for (auto& [name, tensor] : one.tensors) {
        tensor = tensor.index_select(-2, order);
        if (name == "out.mask") tensor = tensor.index_select(-1, order);
      }
    }
    std::string words = "causal & local2d(";
    for (const char* key : {"height", "width", "qh", "qw", "mem_top", "mem_side"})
      words += text(number(one, key), ", ");
    expect_patterns(one, {words + kind + ")"});
  }
}
TEST(PatternGolden, SparseStrided) {
  expect_row("sparse_strided", [](const golden::Case& one) {
    return halves(one, text("window(", number(one, "l") + 1, ")"), text("stride(", number(one, "l"), ")"));
  });
}
TEST(PatternGolden, SparseFixed) {
  expect_row("sparse_fixed", [](const golden::Case& one) {
    const int64_t l = number(one, "l"), c = number(one, "c");
    auto patterns = halves(one, text("block_local(", l, ", 0)"), text("fixed(", l, ", ", c, ")"));
    if (one.config.value("distinct", false)) {
      patterns = {patterns[0], patterns[1], patterns[0], text("causal & fixed(", l, ", ", c, ", 1)")};
    }
    return patterns;
  });
}
TEST(PatternGolden, LongformerMask) {
  expect_row("longformer_mask", [](const golden::Case& one) -> std::vector<std::string> {
    std::string places;
    for (const int64_t g : one.config.at("global").get<std::vector<int64_t>>())
      places += (places.empty() ? "" : ", ") + text(g);
    return {causal(one, text("window(", number(one, "w") + 1, ") | global([", places, "])"))};
  });
}
TEST(PatternGolden, BigBird) {
  expect_row("bigbird", [](const golden::Case& one) {
    const int64_t block = number(one, "block");
    std::string places;
    for (const int64_t g : one.config.at("global_blocks").get<std::vector<int64_t>>())
      places += text(places.empty() ? "" : ", ", g * block, ":", (g + 1) * block);
    std::vector<std::string> out;
    for (const auto& table : one.config.at("random"))
      out.push_back(text("block_window(", block, ", ", (number(one, "window_blocks") - 1) / 2, ") | global([", places,
                         "]) | block_table(", block, ", ", table.dump(), ")"));
    return out;
  });
}
TEST(PatternGolden, Blockwise) {
  expect_row("blockwise", [](const golden::Case& one) {
    std::vector<std::string> out;
    for (const auto& permutation : one.config.at("perm"))
      out.push_back(
          causal(one, text("blocks(", number(one, "n"), ", ", one.at("in.q").size(2), ", ", permutation.dump(), ")")));
    return out;
  });
}

}  // namespace
}  // namespace kinfolk
