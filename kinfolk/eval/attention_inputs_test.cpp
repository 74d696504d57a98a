#include "kinfolk/eval/attention_inputs.h"

#include <gtest/gtest.h>

#include "kinfolk/nn/mixers/attention.h"
#include "kinfolk/nn/testing.h"

namespace kinfolk {
namespace {

/// Causal softmax attention by whole matrices.  [B, L, H d]
Tensor joined(const AttentionInputs& in) {
  const int64_t length = in.q.size(2);
  const Tensor scores = at::matmul(in.q, in.k.transpose(2, 3)) / std::sqrt(static_cast<double>(in.q.size(-1)));
  const Tensor later = at::ones({length, length}, at::kBool).triu(1);
  return at::matmul(scores.masked_fill(later, -INFINITY).softmax(-1), in.v).transpose(1, 2).flatten(2);
}

/// A memory that keeps what was read through it.
struct Peek : Memory {
  explicit Peek(std::shared_ptr<Memory> inner) : inner(std::move(inner)) {}
  Traits traits() const override { return inner->traits(); }
  State start(int64_t batch, at::TensorOptions like) const override { return inner->start(batch, like); }
  Read meet(const Fresh& fresh, const Eyes& eyes, Pass& pass, State* state) override {
    return last = inner->meet(fresh, eyes, pass, state);
  }
  std::shared_ptr<Memory> inner;
  Read last;
};

TEST(AttentionInputs, GiveWhatTheModelComputed) {
  for (const std::string name : {"rope", "nope", "vanilla_decoder", "key_norm"}) {
    Recipe recipe = load_recipe(name);
    if (name == "rope") override_recipe(recipe, "layers.0.branches.0.groups=2");
    if (name == "rope") override_recipe(recipe, "layers.0.branches.0.scale=0.7");
    const auto model = Model::make(recipe, tiny_size(), 1);
    const Tensor tokens = random_batch(2, 50, model->size().vocabulary).tokens;
    const auto watched = watch_attention(*model, tokens);
    ASSERT_EQ(watched.layers.size(), 2u) << name;
    EXPECT_TRUE(watched.left_out.empty()) << name;
    for (const auto& layer : watched.layers) {
      EXPECT_EQ(layer.q.sizes(), (at::IntArrayRef{2, 4, 50, 8})) << name;
      EXPECT_EQ(layer.k.sizes(), layer.q.sizes()) << name;
      const auto attention = std::dynamic_pointer_cast<Attention>(model->named_modules()[layer.place]);
      ASSERT_TRUE(attention) << name;
      const auto own = attention->memory;
      const auto peek = std::make_shared<Peek>(own);
      attention->memory = peek;
      model->score({tokens, {}});
      EXPECT_LT(difference(joined(layer), peek->last.out.transpose(1, 2).flatten(2)), 1e-5) << name;
      attention->memory = own;
    }
    EXPECT_TRUE(watch_attention(*model, tokens).layers[1].v.equal(watched.layers[1].v)) << name;  // put back
  }
}

TEST(AttentionInputs, OthersAreLeftOutWithAReason) {
  for (const char* name : {"alibi", "window", "inverse_leaky_rerope", "transformer_xl", "memorizing"}) {
    const auto model = tiny(name);
    const auto watched = watch_attention(*model, random_batch(1, 40, model->size().vocabulary).tokens);
    EXPECT_FALSE(watched.left_out.empty()) << name;
    for (const auto& why : watched.left_out) EXPECT_NE(why.find(": it"), std::string::npos) << why;
  }
  const auto recurrent = tiny("deltanet");
  EXPECT_TRUE(watch_attention(*recurrent, random_batch(1, 40, 29).tokens).layers.empty());
}

}  // namespace
}  // namespace kinfolk
