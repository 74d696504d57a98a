#include "kinfolk/nn/mixers/gau.h"

#include "tests/support/attention.h"

namespace kinfolk {
namespace {

TEST(Gau, Golden) {
  for (const auto& one : golden::cases("attention/gau")) {
    SCOPED_TRACE(one.name);
    const Tensor x = one.at("in.x").set_requires_grad(true);
    Context context;
    context.size.width = x.size(2);
    context.like = at::TensorOptions().dtype(at::kDouble);
    Gau::Options options;
    options.form = one.config.at("kind");
    options.pattern = one.config.at("causal").get<bool>() ? "causal" : "full";
    options.key_width = one.at("param.wz").size(1);
    options.inner = one.at("param.wu").size(1);
    Gau branch(options, context);
    branch.to(at::kDouble);
    const std::map<std::string, Tensor> places{{"wu", branch.u->weight}, {"wv", branch.v->weight},
                                               {"wz", branch.z->weight}, {"wo", branch.out->weight},
                                               {"gamma", branch.gamma},  {"beta", branch.beta}};
    const auto stored = [&](const std::string& name, const Tensor& t) { return name[0] == 'w' ? t.t() : t; };
    {
      const at::NoGradGuard guard;
      for (const auto& [name, place] : places) {
        Tensor weight = place;
        weight.copy_(stored(name, one.at("param." + name)));
      }
    }
    const Batch batch{at::zeros({x.size(0), x.size(1)}, at::kLong), {}};
    Pass pass{batch};
    pass.position = at::arange(x.size(1), at::kLong).repeat({x.size(0), 1});
    const Tensor y = branch.forward(x, pass, nullptr);
    golden::expect_close(y, one.at("out.y"), one, "y");
    (y * one.at("cot.y")).sum().backward();
    golden::expect_gradient(x.grad(), one.at("grad.in.x"), one, "x");
    for (const auto& [name, place] : places)
      golden::expect_gradient(stored(name, place.grad()), one.at("grad.param." + name), one, name);
  }
}

TEST(Gau, SaysWhatItCannotDo) {
  Context context;
  context.size.width = 8;
  const auto make = [&](const std::string& form, const std::string& pattern, std::vector<Spec> qk) {
    Gau::Options options;
    options.form = form, options.pattern = pattern, options.key_width = 4, options.qk = std::move(qk);
    return std::make_shared<Gau>(options, context);
  };
  EXPECT_TRUE(make("relu2", "causal", {})->traits().streams);
  EXPECT_TRUE(make("relu2", "causal & window(4)", {})->traits().bounded);
  EXPECT_FALSE(make("relu2_n", "causal", {})->traits().streams);
  EXPECT_TRUE(make("relu2_n", "causal", {})->traits().causal);
  EXPECT_FALSE(make("softmax", "full", {})->traits().streams);
  EXPECT_NO_THROW(make("softmax", "causal", {"rerope"}));
  EXPECT_THROW(make("relu2", "causal", {"rerope"}), Error);
}

}  // namespace
}  // namespace kinfolk
