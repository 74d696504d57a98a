#include "kinfolk/nn/input/positions.h"

#include <gtest/gtest.h>

#include "kinfolk/core/errors.h"
#include "kinfolk/nn/input/tokens.h"
#include "kinfolk/reference/golden.h"

namespace kinfolk {
namespace {

struct Bench {
  Bench(const std::string& kind, int64_t width, int64_t length, at::ScalarType type, double base = 10000,
        const std::string& layout = "interleaved") {
    context.size.width = width, context.size.context = length, context.size.vocabulary = 5;
    context.like = at::TensorOptions().dtype(type);
    options.position = kind, options.base = base, options.layout = layout;
    branch = std::make_shared<PositionBranch>(options, context);
  }
  Tensor run(const Tensor& x, int64_t start) {
    const Batch batch;
    Pass pass{batch};
    pass.position = (at::arange(x.size(1)) + start).expand({x.size(0), x.size(1)});
    return branch->forward(x, pass, nullptr);
  }
  Context context;
  PositionBranch::Options options;
  std::shared_ptr<PositionBranch> branch;
};

TEST(Positions, SinusoidalGolden) {
  for (const auto& c : golden::cases("attention/sinusoidal")) {
    for (const auto type : {at::kFloat, at::kDouble}) {
      const Tensor x = c.at("in.x").to(type).requires_grad_();
      Bench bench("sinusoidal", x.size(2), x.size(1), type, c.config.at("base").get<double>(),
                  c.config.at("layout").get<std::string>());
      const Tensor table = bench.run(x, c.config.at("start").get<int64_t>());
      golden::expect_close(table[0], c.at("out.pe"), c, "pe");
      const Tensor y = x + table;
      golden::expect_close(y, c.at("out.y"), c, "y");
      (y * c.at("cot.y")).sum().backward();
      golden::expect_gradient(x.grad(), c.at("grad.in.x"), c, "x");
    }
  }
}

TEST(Positions, LearnedGolden) {
  for (const auto& c : golden::cases("attention/learned")) {
    for (const auto type : {at::kFloat, at::kDouble}) {
      const Tensor x = c.at("in.x").to(type).requires_grad_(), tables = c.at("param.table").to(type);
      const int64_t layer = c.config.at("layer").get<int64_t>();
      Bench bench("learned", x.size(2), tables.size(1), type);
      Tensor table = bench.branch->parameters().at(0);
      table.detach().copy_(tables[layer]);
      const Tensor y = x + bench.run(x, c.config.at("start").get<int64_t>());
      golden::expect_close(y, c.at("out.y"), c, "y");
      (y * c.at("cot.y")).sum().backward();
      golden::expect_gradient(x.grad(), c.at("grad.in.x"), c, "x");
      // Each layer is a branch with a table of its own: the other rows of the case's stack get nothing.
      golden::expect_gradient(table.grad(), c.at("grad.param.table")[layer], c, "table");
      const Tensor unused = c.at("grad.param.table")[layer].eq(0).all(-1);
      EXPECT_EQ(table.grad().index({unused}).abs().sum().item<double>(), 0) << c.name << ": rows that nobody read";
      for (int64_t other = 0; other < tables.size(0); ++other) {
        if (other != layer) {
          EXPECT_EQ(c.at("grad.param.table")[other].abs().sum().item<double>(), 0);
        }
      }
    }
  }
}

TEST(Positions, ALearnedTableSaysWhereItEnds) {
  Bench bench("learned", 4, 6, at::kFloat);
  EXPECT_EQ(bench.branch->traits().context, 6);
  EXPECT_NO_THROW(bench.run(at::zeros({1, 6, 4}), 0));
  try {
    bench.run(at::zeros({1, 6, 4}), 1);
    FAIL() << "position 6 of a table of 6";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("below 6"), std::string::npos) << error.what();
  }
}

// Far along, the phases must not drown in rounding: float32 angles would be off by hundredths here.
TEST(Positions, SinesStayExactFarAway) {
  Bench single("sinusoidal", 6, 1, at::kFloat), wide("sinusoidal", 6, 1, at::kDouble);
  const Tensor far = single.run(at::zeros({1, 4, 6}), 5'000'000),
               want = wide.run(at::zeros({1, 4, 6}, at::kDouble), 5'000'000);
  EXPECT_LT((far - want).abs().max().item<double>(), 1e-7);
}

TEST(Positions, TokensScaleBeforeTheyAreAdded) {
  Context context;
  context.size.width = 16, context.size.vocabulary = 5;
  context.like = at::TensorOptions().dtype(at::kDouble);
  Tokens::Options options;
  options.scale = true, options.position = "sinusoidal";
  Tokens tokens(options, context);
  tokens.eval();
  const Batch batch{at::tensor({3, 1, 4}, at::kLong).view({1, 3}), {}};
  Pass pass{batch};
  pass.position = at::arange(3).view({1, 3});
  Bench positions("sinusoidal", 16, 3, at::kDouble);
  const Tensor want =
      4 * tokens.tied().index_select(0, batch.tokens[0]) + positions.run(at::zeros({1, 3, 16}, at::kDouble), 0)[0];
  EXPECT_LT((tokens.embed(pass)[0] - want).abs().max().item<double>(), 1e-14);
}

TEST(Positions, TokensRefuseIdsOutsideTheVocabularyUnlessTheyArePadding) {
  Context context;
  context.size.width = 4, context.size.vocabulary = 5;
  Tokens tokens({}, context);
  Batch batch{at::tensor({1, 5}, at::kLong).view({1, 2}), {}};
  Pass pass{batch};
  EXPECT_THROW(tokens.embed(pass), Error);
  pass.valid = at::tensor({1, 0}, at::kLong).view({1, 2}).to(at::kBool);
  EXPECT_NO_THROW(tokens.embed(pass));
}

}  // namespace
}  // namespace kinfolk
