// What `explain` says of a branch against what runs.
#include <ATen/record_function.h>
#include <gtest/gtest.h>

#include <set>

#include "kinfolk/nn/mixers/attention.h"
#include "kinfolk/nn/testing.h"

namespace kinfolk {
namespace {

std::set<std::string>& heard() {
  static thread_local std::set<std::string> names;
  return names;
}

/// The torch operators that f calls on this thread.
template <class F>
std::set<std::string> operators_of(const F& f) {
  heard().clear();
  const auto handle = at::addThreadLocalCallback(
      at::RecordFunctionCallback([](const at::RecordFunction& function) -> std::unique_ptr<at::ObserverContext> {
        heard().insert(function.name());
        return nullptr;
      }).scopes({at::RecordScope::FUNCTION}));
  f();
  at::removeCallback(handle);
  return heard();
}

/// Only the plain path takes exponentials of scores in place, one tile after the other.
bool ran_in_tiles(const std::set<std::string>& operators) { return operators.count("aten::exp_") > 0; }

TEST(Explain, SaysTiledWhereTilesRanAndFusedWhereNot) {
  int64_t attentions = 0, tiled = 0;
  for (const auto& name : recipe_names()) {
    const auto model = tiny(name);
    int64_t seen = 0;
    for (const auto& item : model->named_modules()) {
      const auto branch = std::dynamic_pointer_cast<Attention>(item.value());
      if (!branch) continue;
      const Tensor x = at::randn({2, 40, 32}, at::detail::createCPUGenerator(1)).set_requires_grad(true);
      Batch batch{at::zeros({2, 40}, at::kLong), {{"prefix", at::full({2}, 7, at::kLong)}}};
      const auto operators = operators_of([&] {
        Pass pass{batch};
        pass.position = at::arange(40, at::kLong).repeat({2, 1});
        branch->forward(x, pass, nullptr);
      });
      const std::string line = branch->explain();
      const bool fused = line.find(", fused") != std::string::npos;
      EXPECT_EQ(line.rfind("attend(", 0), 0u) << name << ": " << line;
      EXPECT_EQ(ran_in_tiles(operators), !fused) << name << " " << item.key() << ": " << line;
      // A reason, not only the fact.
      EXPECT_EQ(line.find("tiled torch operators: ") != std::string::npos, !fused) << name << ": " << line;
      ++attentions, tiled += !fused;
      ++seen;
    }
    // Branches of another kind that read a part of what they read through attend.
    const std::string said = model->explain();
    const auto says = [&](const char* words) { return said.find(words) != std::string::npos; };
    EXPECT_TRUE(seen > 0 || !says("attend(") || says("relu_attend(") || says("attend_groups") || says("of codewords"))
        << name;
  }
  EXPECT_GT(attentions, 40);
}

TEST(Explain, EveryBranchNamesAnOperator) {
  for (const auto& name : recipe_names()) {
    const auto model = tiny(name);
    for (const auto& item : model->named_modules()) {
      const auto branch = std::dynamic_pointer_cast<Branch>(item.value());
      if (!branch) continue;
      const std::string line = branch->explain();
      EXPECT_FALSE(line.empty() || line == "torch operators") << name << " " << item.key() << " leaves the default";
    }
  }
}

TEST(Explain, TheKnownPlainPathIsHeard) {
  // The measure itself: a branch whose dropout the plain path alone takes, or any plan asked to be plain.
  const auto operators = operators_of([] {
    const Tensor q = at::randn({1, 2, 9, 8}), k = at::randn({1, 2, 9, 8});
    const Tensor at = at::arange(9, at::kLong).unsqueeze(0);
    AttendPlan plan{.pattern = parse_pattern("causal")};
    plan.plain = true;
    attend({{q}}, q, at, {}, {{k, k, at, {}, {}, {}}}, {{{k}}}, plan);
  });
  EXPECT_TRUE(ran_in_tiles(operators));
}

}  // namespace
}  // namespace kinfolk
