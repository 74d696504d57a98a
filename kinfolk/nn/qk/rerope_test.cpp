#include "kinfolk/nn/qk/rerope.h"

#include "tests/support/attention.h"

namespace kinfolk {
namespace {
using namespace testing;

/// The row in float32, which the fused path takes, within what float32 allows.
void expect_fused(const golden::Case& one, Attention& branch) {
  EXPECT_EQ(branch.explain().find("tiled"), std::string::npos) << branch.explain();
  golden::Case loose = one;
  loose.absolute = loose.relative = loose.gradient = 1e-5;
  const auto leaf = [&](const char* name) { return one.at(name).to(at::kFloat).set_requires_grad(true); };
  const Tensor q = leaf("in.q"), k = leaf("in.k"), v = leaf("in.v");
  const Tensor k_at = at::arange(k.size(2), at::kLong).repeat({q.size(0), 1});
  const Tensor q_at = k_at.narrow(1, k.size(2) - q.size(2), q.size(2));
  const Read read = branch.look(q, q_at, {}, {Keys{k, v, k_at, {}, {}, {}}});
  golden::expect_close(read.out.to(at::kDouble), one.at("out.o"), loose, "float out.o");
  (read.out * one.at("cot.o").to(at::kFloat)).sum().backward();
  for (const auto& [x, name] : std::vector<std::pair<Tensor, std::string>>{{q, "q"}, {k, "k"}, {v, "v"}}) {
    golden::expect_gradient(x.grad().to(at::kDouble), one.at("grad.in." + name), loose, "float " + name);
  }
}

/// log_n stands before or after the rotation: it only scales queries.
void expect_row(const std::string& row, const std::string& kind) {
  for (const auto& one : golden::cases("attention/" + row)) {
    std::string step = text("{ kind = \"", kind, "\", window = ", one.config.at("window").get<int64_t>());
    if (kind == "leaky_rerope") step += text(", k = ", std::to_string(one.config.at("k").get<double>()));
    step += " }";
    const std::string pattern = one.config.at("causal").get<bool>() ? "causal" : "full";
    std::vector<std::string> orders{step};
    if (one.config.at("logn").get<bool>()) {
      const std::string scale =
          text("{ kind = \"log_n\", clip = true, trained = ", one.config.at("train_length").get<int64_t>(), " }");
      orders = {step + ", " + scale, scale + ", " + step};
    }
    for (const auto& order : orders) {
      const std::string options = text("pattern = \"", pattern, "\"\nqk = [", order, "]");
      expect_core(one, *core_branch(one, options));
      const int64_t heads = one.at("in.q").size(1), width = heads * one.at("in.q").size(3);
      expect_fused(one, *make_attention(options, width, heads, at::TensorOptions().dtype(at::kFloat)));
    }
  }
}

TEST(Rerope, Golden) { expect_row("rerope", "rerope"); }
TEST(LeakyRerope, Golden) { expect_row("leaky_rerope", "leaky_rerope"); }
TEST(LeakyRerope, GoldenOfTheInverse) { expect_row("inverse_leaky_rerope", "leaky_rerope"); }

TEST(Rerope, IsRopeWithinTheWindow) {
  const Sequence s{normal({1, 10, 8}, 3)};
  const Tensor rope = run(*make_attention("qk = [\"rope\"]", 8, 2), s, {10});
  const auto wide = make_attention("qk = [{ kind = \"rerope\", window = 9 }]", 8, 2);
  const auto narrow = make_attention("qk = [{ kind = \"rerope\", window = 8 }]", 8, 2);
  EXPECT_LE(distance(run(*wide, s, {10}), rope), 1e-12);
  EXPECT_GT(distance(run(*narrow, s, {10}), rope), 1e-4);
  EXPECT_TRUE(narrow->keys_final());
}

TEST(Rerope, FarKeysStandAtTheWindow) {
  const auto branch = make_attention("qk = [{ kind = \"rerope\", window = 4 }]", 8, 1);
  const Tensor q = normal({1, 1, 1, 8}, 1), k = normal({1, 1, 1, 8}, 2);
  const auto score = [&](int64_t i, int64_t j) {
    const Tensor at = at::full({1, 1}, i, at::kLong), key_at = at::full({1, 1}, j, at::kLong);
    return branch->look(q, at, {}, {Keys{k, k, key_at, {}, {}, {}}}).lse.item<double>();
  };
  EXPECT_NEAR(score(5, 1), score(4, 0), 1e-12);
  EXPECT_NEAR(score(100, 1), score(4, 0), 1e-12);
  EXPECT_NEAR(score(12, 9), score(3, 0), 1e-12);
  EXPECT_GT(std::abs(score(3, 0) - score(4, 0)), 1e-4);
}

TEST(Rerope, NearKeysAreKeptBesideThoseOfAllTokens) {
  struct Want {
    std::string pattern;
    int64_t all, near;  ///< columns after 20 tokens; near -1: there is one kind of keys
  };
  for (const std::string kind : {"rerope", "leaky_rerope"})
    for (const Want& want :
         {Want{"causal", 20, 4}, Want{"causal & window(12)", 11, 4}, Want{"causal & window(5)", 4, -1}}) {
      const std::string step = text("{ kind = \"", kind, "\", window = 5 }");
      const std::string what = text(kind, " in ", want.pattern);
      const auto branch = make_attention(text("pattern = \"", want.pattern, "\"\nqk = [", step, "]"), 8, 2);
      EXPECT_TRUE(branch->keys_final());
      const Sequence s{normal({3, 20, 8}, 3)};
      State state = branch->start(3, real());
      const Tensor whole = run(*branch, s, {20});
      EXPECT_LE(distance(run(*branch, s, {3, 1, 1, 8, 7}, &state), whole), 1e-12) << what;
      EXPECT_EQ(state.tensors.at("k").size(2), want.all) << what;
      EXPECT_EQ(state.tensors.count("k1"), want.near < 0 ? 0u : 1u) << what;
      if (want.near >= 0) {
        EXPECT_EQ(state.tensors.at("k1").size(2), want.near) << what;
      }
      EXPECT_EQ(state.bytes(), 3 * 8 * (8 * (2 * want.all + std::max<int64_t>(want.near, 0)) + 2 * want.all)) << what;
    }
}

TEST(Rerope, LanesAreResetAndReorderedWithTheirNearKeys) {
  for (const auto& like : {real(), at::TensorOptions().dtype(at::kFloat)}) {
    const double bound = like.dtype() == at::kFloat ? 1e-5 : 1e-12;
    const auto branch = make_attention("qk = [{ kind = \"rerope\", window = 4 }]", 8, 2, like);
    const Tensor x = normal({3, 9, 8}, 3).to(like), other = normal({1, 12, 8}, 4).to(like);
    State state = branch->start(3, like), one = branch->start(1, like);
    run(*branch, {x.narrow(1, 0, 7)}, {7}, &state);
    run(*branch, {other.narrow(1, 0, 10)}, {10}, &one);
    state.put_lane(1, one);
    state.put_lane(2, branch->start(1, like));
    state.select(at::tensor({2, 1, 0, 0}, at::kLong));
    // Lane 0 begins anew, 1 goes on with `other`, 2 and 3 with lane 0 of x.
    const Tensor next = at::cat({x.narrow(0, 2, 1).narrow(1, 0, 2), other.narrow(1, 10, 2),
                                 x.narrow(0, 0, 1).narrow(1, 7, 2), x.narrow(0, 0, 1).narrow(1, 7, 2)});
    const std::vector<Tensor> want{run(*branch, {x.narrow(0, 2, 1)}, {9}).narrow(1, 0, 2),
                                   run(*branch, {other}, {12}).narrow(1, 10, 2),
                                   run(*branch, {x.narrow(0, 0, 1)}, {9}).narrow(1, 7, 2)};
    const Batch batch;
    std::vector<Tensor> got;
    for (int64_t t = 0; t < 2; ++t) {
      Pass pass{.batch = batch};
      pass.position = at::tensor({0, 10, 7, 7}, at::kLong).view({4, 1}) + t;
      got.push_back(branch->forward(next.narrow(1, t, 1), pass, &state));
    }
    const Tensor out = at::cat(got, 1);
    for (int64_t lane = 0; lane < 4; ++lane)
      EXPECT_LE(distance(out[lane], want[static_cast<size_t>(std::min<int64_t>(lane, 2))][0]), bound) << lane;
  }
}

/// In float32 every call of these takes the fused path.
TEST(Rerope, CallsOfAnyLengthAgreeInFloat) {
  const auto like = at::TensorOptions().dtype(at::kFloat);
  for (const std::string kind : {"rerope", "leaky_rerope"})
    for (const std::string pattern : {"causal", "causal & window(90)"}) {
      const auto branch = make_attention(text("groups = 1\npattern = \"", pattern, "\"\nqk = [{ kind = \"", kind,
                                              "\", window = 40 }, { kind = \"log_n\", trained = 8 }]"),
                                         32, 2, like);
      const Tensor valid = at::rand({2, 230}, at::detail::createCPUGenerator(5)).gt(0.2);
      for (const Sequence& s :
           {Sequence{normal({2, 230, 32}, 3).to(like)}, Sequence{normal({2, 230, 32}, 3).to(like), valid}}) {
        const auto want = run_with_gradients(*branch, s, {230});
        for (const auto& calls : std::vector<std::vector<int64_t>>{{100, 1, 1, 1, 127}, {39, 41, 150}}) {
          const auto got = run_with_gradients(*branch, s, calls);
          EXPECT_LE(distance(got.out, want.out), 1e-5) << kind << pattern;
          for (const auto& [name, gradient] : want.gradients)
            EXPECT_LE(distance(got.gradients.at(name), gradient), 1e-5 * (1 + gradient.abs().max().item<double>()))
                << kind << pattern << name;
        }
      }
    }
}

}  // namespace
}  // namespace kinfolk
