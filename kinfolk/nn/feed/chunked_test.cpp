#include "kinfolk/nn/feed/chunked.h"

#include <gtest/gtest.h>

#include "kinfolk/core/errors.h"
#include "kinfolk/nn/testing.h"

namespace kinfolk {
namespace {

const char* const kFeeds[] = {"{ kind = \"mlp\" }", "{ kind = \"glu\", bias = true }",
                              "{ kind = \"separable\", kernel = 3, second_kernel = 4 }"};

Context context_of(double dropout = 0) {
  Context context;
  context.size.width = 6, context.size.feed = 9, context.size.dropout = dropout;
  context.like = at::TensorOptions().dtype(at::kDouble);
  context.generator = at::detail::createCPUGenerator(1);
  context.path = "feed";
  return context;
}

std::shared_ptr<Branch> make(const std::string& table, double dropout = 0) {
  return registry<Branch>().create(Spec(*parse_toml("x = " + table, "test").find("x")), context_of(dropout), "feed");
}

std::shared_ptr<Branch> chunked(const std::string& feed, int64_t chunk, double dropout = 0) {
  return make(text("{ kind = \"chunked\", chunk = ", chunk, ", feed = ", feed, " }"), dropout);
}

struct Facts {
  Tensor valid = {}, first = {}, document = {};
};

/// Output, gradient of x and of the parameters (in their order) for a fixed cotangent.
std::vector<Tensor> run(Branch& branch, const Tensor& x, const Facts& facts, State* state = nullptr) {
  const Tensor leaf = x.detach().clone().set_requires_grad(true);
  for (auto& p : branch.parameters()) p.mutable_grad() = Tensor();
  const Batch batch;
  Pass pass{batch};
  pass.valid = facts.valid, pass.first = facts.first, pass.document = facts.document;
  pass.seed = 3;
  const Tensor y = branch.forward(leaf, pass, state);
  const Tensor cotangent = at::randn(y.sizes(), at::detail::createCPUGenerator(5), y.options().requires_grad(false));
  (y * cotangent).sum().backward();
  std::vector<Tensor> out{y.detach(), leaf.grad()};
  for (auto& p : branch.parameters()) out.push_back(p.grad().clone());
  return out;
}

TEST(Chunked, EqualsTheFeedItWrapsWithItsGradients) {
  const Tensor x = at::randn({2, 11, 6}, at::detail::createCPUGenerator(2), at::TensorOptions(at::kDouble));
  Facts padded;
  padded.valid = at::ones({2, 11}, at::kBool);
  padded.valid[0].slice(0, 0, 3).fill_(false), padded.valid[1].slice(0, 5, 7).fill_(false);
  Facts split;
  split.first = at::zeros({2, 11}, at::kBool);
  split.first[0][4].fill_(true), split.first[1][8].fill_(true);
  split.document = split.first.cumsum(1);
  for (const std::string feed : kFeeds)
    for (const auto& facts : {Facts(), padded, split}) {
      const auto whole = run(*make(feed), x, facts);
      for (const int64_t chunk : {1, 2, 6, 10, 21, 22, 1024}) {  // over two lanes: 1, 1, 3, 5, 10, 11, 11 tokens
        const auto parts = run(*chunked(feed, chunk), x, facts);
        ASSERT_EQ(parts.size(), whole.size());
        for (size_t i = 0; i < whole.size(); ++i) {
          EXPECT_LT(difference(parts[i], whole[i]), 1e-12) << feed << " chunk " << chunk << " tensor " << i;
        }
      }
    }
}

TEST(Chunked, CarriesTheStateOfItsFeed) {
  const Tensor x = at::randn({2, 13, 6}, at::detail::createCPUGenerator(2), at::TensorOptions(at::kDouble));
  for (const std::string feed : kFeeds) {
    const auto plain = make(feed), parts = chunked(feed, 4);
    State a = plain->start(2, x.options()), b = parts->start(2, x.options());
    for (const auto& [from, count] : {std::pair(0, 7), std::pair(7, 1), std::pair(8, 5)}) {
      const auto want = run(*plain, x.narrow(1, from, count), {}, &a),
                 got = run(*parts, x.narrow(1, from, count), {}, &b);
      for (size_t i = 0; i < want.size(); ++i) EXPECT_LT(difference(got[i], want[i]), 1e-12) << feed << i;
      const auto flat_a = a.flat(), flat_b = b.flat();
      ASSERT_EQ(flat_a.size(), flat_b.size());
      for (const auto& [name, t] : flat_a) EXPECT_LT(difference(flat_b.at(name), t), 1e-12) << feed << name;
      a.detach(), b.detach();
    }
  }
}

TEST(Chunked, DropsTheSameInBackwardAsInForward) {
  // With dropout the function is not the unchunked one, but its gradient is that of what it computed.
  const auto branch = chunked("{ kind = \"mlp\", activation = \"relu\" }", 3, 0.5);
  const Tensor x = at::randn({1, 8, 6}, at::detail::createCPUGenerator(2), at::TensorOptions(at::kDouble));
  const auto base = run(*branch, x, {});
  const Tensor cotangent = at::randn(x.sizes(), at::detail::createCPUGenerator(5), at::TensorOptions(at::kDouble));
  for (const int64_t t : {0, 4, 7}) {
    const Tensor moved = x.clone();
    moved[0][t][2] += 1e-6;
    const Tensor slope = ((run(*branch, moved, {})[0] - base[0]) * cotangent).sum() / 1e-6;
    EXPECT_NEAR(slope.item<double>(), base[1][0][t][2].item<double>(), 1e-5);
  }
  branch->eval();
  EXPECT_LT(difference(run(*branch, x, {})[0], run(*make("{ kind = \"mlp\", activation = \"relu\" }"), x, {})[0]),
            1e-12);
}

TEST(Chunked, InAModelWithAndWithoutCheckpointing) {
  Recipe recipe = load_recipe("rope");
  const auto plain = Model::make(recipe, tiny_size(), 1, at::TensorOptions(at::kDouble));
  override_recipe(recipe, "layers.0.branches.1={ kind = \"chunked\", feed = \"glu\", chunk = 10 }");
  const auto parts = Model::make(recipe, tiny_size(), 1, at::TensorOptions(at::kDouble));
  const Batch batch = random_batch(2, 17, 29);
  const auto gradients = [&](Model& model) {
    Pass pass{batch};
    for (const auto& [name, w] : model.weights()) w.mutable_grad() = Tensor();
    model.forward(pass).square().sum().backward();
    std::vector<Tensor> out;
    for (const auto& [name, w] : model.weights()) out.push_back(w.grad());
    return out;
  };
  const auto want = gradients(*plain);
  for (const bool checkpointing : {false, true}) {
    parts->checkpointing = checkpointing;
    const auto got = gradients(*parts);
    ASSERT_EQ(got.size(), want.size());
    for (size_t i = 0; i < want.size(); ++i) {
      EXPECT_LT(difference(got[i], want[i]), 1e-11) << i;
      EXPECT_EQ(parts->weights()[i].first, plain->weights()[i].first);
    }
  }
}

TEST(Chunked, RefusesWhatIsNoFeed) {
  try {
    chunked("{ kind = \"attention\", heads = 1 }", 8);
    FAIL();
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("[feed.feed] expected a branch with a bounded state or none"),
              std::string::npos)
        << error.what();
  }
}

}  // namespace
}  // namespace kinfolk
