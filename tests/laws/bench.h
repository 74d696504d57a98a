// What the laws share: every recipe as a small model in double, and the ways of running it.
#pragma once
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <memory>
#include <ostream>
#include <string>
#include <vector>

#include "kinfolk/core/errors.h"
#include "kinfolk/nn/model.h"

namespace kinfolk::laws {

/// A recipe under a name that a test can have.
struct Member {
  std::string name;
  Recipe recipe;
};
inline void PrintTo(const Member& member, std::ostream* out) { *out << member.name; }
inline std::string name_of(const ::testing::TestParamInfo<Member>& info) { return info.param.name; }

/// Windows, segments and the like so short that a dozen tokens go beyond them.
inline Recipe shrunk(Recipe recipe) {
  if (Value* let = recipe.tree.find("let")) {
    for (auto& [key, value] : *let->as<Value::Table>()) {
      const auto* number = value.as<int64_t>();
      if (number && *number > 6) value = Value(key == "memory" ? int64_t{6} : int64_t{5});
    }
  }
  return recipe;
}

/// Parts and options that no recipe uses by default: tests/laws/variants.
inline std::vector<Member> variants() {
  std::vector<Member> out;
  for (const auto& entry : std::filesystem::directory_iterator(KINFOLK_SOURCE_DIR "/tests/laws/variants")) {
    out.push_back({entry.path().stem().string(), load_recipe(entry.path().string())});
  }
  std::sort(out.begin(), out.end(), [](const Member& a, const Member& b) { return a.name < b.name; });
  return out;
}

/// All recipes, as they are trained and, where it differs, as they are tested; and the variants.
inline std::vector<Member> members() {
  std::vector<Member> out;
  for (const auto& name : recipe_names()) {
    const Recipe recipe = load_recipe(name), tested = at_test(recipe);
    out.push_back({name, shrunk(recipe)});
    if (write_toml(tested.tree) != write_toml(recipe.tree)) out.push_back({name + "_at_test", shrunk(tested)});
  }
  for (auto& variant : variants()) out.push_back(std::move(variant));
  return out;
}

using Facts = std::map<std::string, Tensor>;

struct Result {
  Tensor out;                            // [B, L, V]
  std::map<std::string, Tensor> losses;  // means over the call
  std::map<std::string, Tensor> trace;
};

struct Bench {
  std::shared_ptr<Model> model;
  Traits traits;
  Tensor tokens;  // [B, L]

  Bench(const Recipe& recipe, int64_t length, int64_t batch = 2, at::ScalarType type = at::kDouble,
        double dropout = 0) {
    Size size;
    size.depth = 2, size.width = 32, size.heads = 2, size.feed = 24, size.vocabulary = 17, size.dropout = dropout;
    size.context = 5;  // what a recipe ties to it (a segment, a window) is shorter than the text
    make(recipe, size, type);
    if (traits.context > 0) {
      size.context = length + 8;
      make(recipe, size, type);
    }
    auto generator = at::detail::createCPUGenerator(11);
    tokens = at::randint(17, {batch, length}, generator, at::kLong);
    model->head().remember(at::randn({40, 32}, generator, at::kDouble), at::randint(17, {40}, generator, at::kLong));
  }

  Result run(const Tensor& ids, State* state = nullptr, Form form = Form::automatic, const Facts& facts = {},
             uint64_t seed = 3) const {
    const Batch batch{ids, facts};
    Result result;
    Pass pass{batch};
    pass.state = state;
    pass.form = form;
    pass.seed = seed;
    pass.losses = &result.losses;
    pass.trace = &result.trace;
    result.out = model->forward(pass);
    return result;
  }

  /// The same tokens in pieces that end at `cuts`, with one state; losses are weighted by their tokens.
  Result pieces(const std::vector<int64_t>& cuts, Form form = Form::automatic, const Facts& facts = {},
                State* state = nullptr) const {
    State own;
    State& carried = state ? *state : own;
    carried = model->start(tokens.size(0));
    Result all;
    std::vector<Tensor> out;
    int64_t from = 0;
    for (const int64_t to : cuts) {
      Facts part;
      for (const auto& [name, fact] : facts) part[name] = fact.slice(1, from, to);
      const Result one = run(tokens.slice(1, from, to), &carried, form, part);
      out.push_back(one.out);
      for (const auto& [name, loss] : one.losses) {
        const Tensor share = loss * (static_cast<double>(to - from) / static_cast<double>(tokens.size(1)));
        Tensor& sum = all.losses[name];
        sum = sum.defined() ? sum + share : share;
      }
      from = to;
    }
    all.out = at::cat(out, 1);
    return all;
  }

  /// A number that every entry of the output and every loss moves.
  Tensor number(const Result& result) const {
    Tensor sum =
        (result.out * at::linspace(-1, 1, result.out.numel(), result.out.options()).view(result.out.sizes())).sum();
    for (const auto& [name, loss] : result.losses) sum = sum + 0.7 * loss;
    return sum;
  }
  std::map<std::string, Tensor> gradients(const Result& result) const {
    std::vector<Tensor> some;
    const auto weights = model->weights();
    for (const auto& [name, tensor] : weights) some.push_back(tensor);
    const auto found = torch::autograd::grad({number(result)}, some, {}, false, false, true);
    std::map<std::string, Tensor> out;
    for (size_t i = 0; i < found.size(); ++i) {
      out[weights[i].first] = found[i].defined() ? found[i] : at::zeros_like(some[i]);
    }
    return out;
  }

 private:
  void make(const Recipe& recipe, const Size& size, at::ScalarType type) {
    model = Model::make(recipe, size, 7, at::TensorOptions().dtype(type));
    model->eval();
    traits = model->traits();
  }
};

/// The largest difference, relative to the largest entry where that is above 1; infinite for anything not a number.
inline double apart(const Tensor& a, const Tensor& b) {
  if (a.sizes() != b.sizes()) return INFINITY;
  if (a.numel() == 0) return 0;
  const double d = (a - b).detach().abs().max().item<double>();
  const double scale = std::max(1.0, b.detach().abs().max().item<double>());
  return std::isfinite(d) ? d / scale : INFINITY;
}

inline void expect_same(const Result& got, const Result& want, double bound, const std::string& what) {
  EXPECT_LE(apart(got.out, want.out), bound) << what;
  EXPECT_EQ(got.losses.size(), want.losses.size()) << what;
  for (const auto& [name, loss] : got.losses) {
    EXPECT_LE(apart(loss, want.losses.at(name)), bound) << what << ": loss " << name;
  }
}

inline void expect_same_gradients(const std::map<std::string, Tensor>& got, const std::map<std::string, Tensor>& want,
                                  double bound, const std::string& what) {
  for (const auto& [name, gradient] : got) EXPECT_LE(apart(gradient, want.at(name)), bound) << what << ": " << name;
}

/// Cuts after every token.
inline std::vector<int64_t> single_steps(int64_t length) {
  std::vector<int64_t> cuts;
  for (int64_t t = 1; t <= length; ++t) cuts.push_back(t);
  return cuts;
}

class Law : public ::testing::TestWithParam<Member> {};

}  // namespace kinfolk::laws
