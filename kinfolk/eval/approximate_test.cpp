#include "kinfolk/eval/approximate.h"

#include <gtest/gtest.h>

#include "kinfolk/core/errors.h"
#include "kinfolk/nn/testing.h"

namespace kinfolk {
namespace {

/// Heads that look at few keys each, as trained ones do: keys lie around centres, queries are keys of tokens before.
AttentionInputs inputs(int64_t length, uint64_t seed = 1) {
  auto generator = at::detail::createCPUGenerator(seed);
  const auto draw = [&](at::IntArrayRef sizes) { return at::randn(sizes, generator, at::kFloat); };
  const Tensor centres = draw({12, 16}) * 1.5;
  const auto around = [&] {
    return centres.index_select(0, at::randint(0, 12, {2 * 3 * length}, generator, at::kLong))
               .view({2, 3, length, 16}) +
           0.3 * draw({2, 3, length, 16});
  };
  const Tensor q = around(), k = around();
  return {"layer", q, k, draw({2, 3, length, 16})};
}

double error_of(const std::string& name, const AttentionInputs& in, int64_t value, uint64_t seed = 1) {
  for (const auto& each : approximations())
    if (each.name == name)
      return relative_error(each.read(in, value, seed), exact_attention(in, each.form)).mean().item<double>();
  ADD_FAILURE() << name;
  return 0;
}

TEST(Approximate, ExactFormsAreTheirFormulas) {
  const AttentionInputs in = inputs(40);
  const auto unit = [](const Tensor& x) { return x / x.norm(2, -1, true); };
  const auto softmax = [&](const Tensor& q, const Tensor& k, double scale, int64_t hidden_from) {
    Tensor scores = at::matmul(q, k.transpose(2, 3)) * scale;
    if (hidden_from >= 0) scores = scores.masked_fill(at::ones({40, 40}, at::kBool).triu(hidden_from), -INFINITY);
    return at::matmul(scores.softmax(-1), in.v);
  };
  const auto off = [&](ExactForm form, const Tensor& want) { return difference(exact_attention(in, form), want); };
  EXPECT_LT(off(ExactForm::causal, softmax(in.q, in.k, 0.25, 1)), 1e-5);
  EXPECT_LT(off(ExactForm::whole, softmax(in.q, in.k, 0.25, -1)), 1e-5);
  EXPECT_LT(off(ExactForm::alike, softmax(in.q, in.k, 0, 1)), 1e-5);
  EXPECT_LT(off(ExactForm::unit, softmax(unit(in.q), unit(in.k), 1, 1)), 1e-5);
  Tensor shared = softmax(in.q, unit(in.q), 0.25, 0);
  shared.select(2, 0).copy_(in.v.select(2, 0));  // the first token meets nobody
  EXPECT_LT(off(ExactForm::shared, shared), 1e-5);
}

TEST(Approximate, AtTheirLimitsNothingIsLost) {
  const AttentionInputs in = inputs(96);
  EXPECT_LT(error_of("window", in, 96), 1e-6);
  EXPECT_LT(error_of("routing", in, 1), 1e-6);  // one centroid takes all
  EXPECT_LT(error_of("vq", in, 2 * 96), 1e-6);  // a code for each key
  EXPECT_LT(error_of("mean", in, 96), 1e-6);    // a slot for each
  EXPECT_LT(error_of("near", in, 96), 1e-6);
  const AttentionInputs few = inputs(24);  // of one chunk; four buckets are together after many rounds
  EXPECT_LT(error_of("lsh", few, 16), 0.05);
}

TEST(Approximate, ErrorsFallWithWhatIsTurned) {
  const AttentionInputs sharp = inputs(256);
  AttentionInputs gentle = sharp;  // so that estimates have a variance to speak of
  gentle.q = sharp.q * 0.3, gentle.k = sharp.k * 0.3;
  const struct {
    const char* name;
    const AttentionInputs& in;
    int64_t few, many;
    double share;  // of the first error that the second is at most; with 16 times the features a quarter in the mean
  } rows[] = {{"window", sharp, 16, 128, 0.8},    {"lsh", sharp, 1, 8, 0.5},
              {"vq", sharp, 4, 64, 0.6},          {"no_eps", gentle, 32, 512, 0.4},
              {"positive", gentle, 32, 512, 0.4}, {"independent", gentle, 32, 512, 0.4},
              {"sin_cos", gentle, 32, 512, 0.4},  {"rfa", sharp, 32, 512, 0.4}};
  for (const auto& row : rows) {
    const double few = error_of(row.name, row.in, row.few), many = error_of(row.name, row.in, row.many);
    EXPECT_LT(many, row.share * few) << row.name << " " << few << " -> " << many;
    EXPECT_GT(many, 1e-6) << row.name;
  }
  EXPECT_LT(error_of("routing", sharp, 2), error_of("routing", sharp, 32));  // fewer clusters see more
  double together = 0, apart = 0;  // orthogonal directions lower the variance (Choromanski et al. 2021, theorem 2)
  for (uint64_t seed = 1; seed <= 12; ++seed) {
    together += std::pow(error_of("positive", gentle, 16, seed), 2);
    apart += std::pow(error_of("independent", gentle, 16, seed), 2);
  }
  EXPECT_LT(together, apart);
}

TEST(Approximate, SlotsLoseNothingWhereTokensAreAlike) {
  AttentionInputs in = inputs(64);
  for (Tensor* t : {&in.k, &in.v}) *t = t->repeat_interleave(8, 2);  // runs of 8
  in.q = inputs(512, 2).q;
  EXPECT_LT(error_of("mean", in, 64), 1e-5);
  EXPECT_GT(error_of("mean", in, 32), 0.1);
  EXPECT_LT(error_of("near", in, 512), 1e-5);
  EXPECT_GT(error_of("random", in, 64), 0.1);
}

TEST(Approximate, RowsAreMeansOverLayersLanesAndHeads) {
  const std::vector<AttentionInputs> layers{inputs(64, 1), inputs(64, 2)};
  double last = 0;
  const auto found = measure_approximations(layers, {"window", "lsh", "mean"}, 3, [&](double share) {
    EXPECT_GT(share, last);
    last = share;
  });
  EXPECT_EQ(last, 1);
  ASSERT_EQ(found.rows.size(), 3u + 5u + 3u);
  const auto& row = found.rows[1];
  EXPECT_EQ(row.of->name, "window");
  EXPECT_EQ(row.value, 32);
  std::vector<Tensor> each;
  for (const auto& in : layers)
    each.push_back(relative_error(row.of->read(in, 32, 0), exact_attention(in, row.of->form)));
  EXPECT_NEAR(row.own.mean, at::cat(each).mean().item<double>(), 1e-12);
  EXPECT_NEAR(row.own.spread, at::cat(each).flatten().std().item<double>(), 1e-12);
  EXPECT_EQ(row.own.median, at::cat(each).flatten().median().item<double>());
  EXPECT_NEAR(row.own.by_layer.at(1), each[1].mean().item<double>(), 1e-12);
  EXPECT_EQ(row.own.mean, row.causal.mean);
  EXPECT_NE(found.rows[3].own.mean, found.rows[3].causal.mean);  // lsh: another form
  EXPECT_TRUE(found.rows.back().causal.by_layer.empty());        // sees later tokens
  ASSERT_EQ(found.forms.size(), 2u);
  EXPECT_EQ(found.forms[0].form, ExactForm::alike);
  EXPECT_EQ(found.forms[1].form, ExactForm::shared);
  for (const auto& form : found.forms) EXPECT_GT(form.error.mean, 0.1);
  const auto again = measure_approximations(layers, {"lsh"}, 3);
  EXPECT_EQ(again.rows[2].own.mean, found.rows[5].own.mean);
  EXPECT_THROW(measure_approximations({}, {}, 1), Error);
}

TEST(Approximate, ChartsHoldEveryNumberThatIsTurned) {
  const std::string out =
      approximation_charts(measure_approximations({inputs(64)}, {"window", "lsh", "mean"}, 1), "a <b>");
  for (const char* part : {"a &lt;b&gt;", ">keys<", ">rounds<", ">rank<", ">lsh, to the model", "background:#fff"}) {
    EXPECT_NE(out.find(part), std::string::npos) << part;
  }
  EXPECT_EQ(out.find("nan"), std::string::npos);
}

}  // namespace
}  // namespace kinfolk
