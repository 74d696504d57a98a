#include <gtest/gtest.h>

#include "kinfolk/core/errors.h"
#include "kinfolk/nn/testing.h"

namespace kinfolk {
namespace {

Size small() {
  Size size = load_size("tiny");
  size.width = 64, size.depth = 2, size.context = 64;
  return size;
}
std::string fault(const std::string& name, int64_t bytes) {
  try {
    solve_state_budget(load_recipe(name), small(), bytes);
  } catch (const Error& e) {
    return e.what();
  }
  return "nothing";
}

// Fewer heads of the same width together hold more: 64 x 64 / H floats a layer.
TEST(StateBudget, HeadsOfMatrixStates) {
  for (const std::string name : {"linear_attention", "retnet", "gated_retention", "gla"}) {
    const Recipe got = solve_state_budget(load_recipe(name), small(), 2 * 64 * 64 / 2 * 4);
    const int64_t bytes = settled_state_bytes(got, small());
    EXPECT_NEAR(static_cast<double>(bytes), 2 * 64 * 64 / 2 * 4, 0.1 * 2 * 64 * 64 / 2 * 4) << name;
  }
}

TEST(StateBudget, StatesOfAChannelWindowsAndHiddenWidths) {
  const std::map<std::string, std::vector<int64_t>> wanted{{"mamba", {24'000, 65'536}},
                                                           {"window", {24'000, 65'536}},
                                                           {"lstm", {700, 2'048}},
                                                           {"compressive", {100'000, 300'000}}};
  for (const auto& [name, budgets] : wanted) {
    for (const int64_t bytes : budgets) {
      const Recipe got = solve_state_budget(load_recipe(name), small(), bytes);
      const int64_t found = settled_state_bytes(got, small());
      EXPECT_NEAR(static_cast<double>(found), static_cast<double>(bytes), 0.1 * static_cast<double>(bytes)) << name;
      // What is said of it is what it carries later, too.
      const auto model = Model::make(got, small());
      model->eval();
      State state = model->start(1);
      for (int i = 0; i < 20; i++) model->score({at::zeros({1, 64}, at::kLong), {}}, &state);
      EXPECT_EQ(state.bytes(), found) << name;
    }
  }
}

TEST(StateBudget, RefusesWithASentence) {
  EXPECT_NE(fault("rope", 65536).find("grows with the text"), std::string::npos) << fault("rope", 65536);
  EXPECT_NE(fault("hgrn", 65536).find("as wide as the model"), std::string::npos) << fault("hgrn", 65536);
  EXPECT_NE(fault("hybrid_delta_window", 65536).find("let.window"), std::string::npos)
      << fault("hybrid_delta_window", 65536);
  EXPECT_NE(fault("retnet", 65536 * 100).find("tried: "), std::string::npos) << fault("retnet", 65536 * 100);
  EXPECT_THROW(solve_state_budget(load_recipe("mamba"), small(), 0), UsageError);
}

}  // namespace
}  // namespace kinfolk
