// A law is worth something only if it catches a member that breaks it.
#include "kinfolk/eval/laws.h"

#include <gtest/gtest.h>

#include "kinfolk/nn/family.h"

namespace kinfolk {
namespace {

/// y_t = x_0 + ... + x_t over valid tokens, and one fault.
struct Faulty : Branch {
  struct Options {
    std::string fault = "none";
    template <class Visit>
    void fields(Visit&& visit) {
      visit("fault", fault, "what is wrong",
            one_of({"none", "future", "forgets", "grows", "position", "lanes", "padding", "form"}));
    }
  };
  Faulty(const Options& options, const Context& context) : fault(options.fault), width(context.size.width) {}
  Traits traits() const override {
    Traits traits;
    traits.bounded = true;
    traits.relative = fault == "position";
    return traits;
  }
  double flops(int64_t, int64_t) const override { return 0; }
  State start(int64_t batch, at::TensorOptions like) const override {
    State state;
    state.tensors["sum"] = at::zeros({batch, width}, like);
    if (fault == "grows") state.tensors["rows"] = at::zeros({batch, 0, width}, like);
    return state;
  }
  Tensor forward(const Tensor& in, Pass& pass, State* state) override {
    const Tensor x = fault == "padding" ? in : mask_invalid(in, pass);
    Tensor y = x.cumsum(1);  // [B, L, D]
    if (state) {
      if (fault != "forgets") y = y + state->tensors.at("sum").unsqueeze(1);
      state->tensors["sum"] = y.select(1, -1).clone();
      if (fault == "grows") state->tensors["rows"] = at::cat({state->tensors.at("rows"), x}, 1);
    }
    if (fault == "future" && x.size(1) > 1) y = y + at::cat({x.slice(1, 1), at::zeros_like(x.slice(1, 0, 1))}, 1);
    if (fault == "position") y = y * (1 + pass.position.unsqueeze(-1).to(y.scalar_type()));
    if (fault == "lanes") y = y + y.narrow(0, 0, 1);
    if (fault == "form" && pass.form == Form::step) y = y * 2;
    return fault == "padding" ? y : mask_invalid(y, pass);
  }
  std::string fault;
  int64_t width;
};

std::map<std::string, LawResult> laws_of(const std::string& fault) {
  if (!registry<Branch>().has("faulty")) registry<Branch>().add<Faulty>("faulty", "for this test");
  const Recipe recipe{
      "faulty",
      parse_toml("[[layers]]\nrepeat = \"all\"\n[[layers.branches]]\nkind = \"faulty\"\nfault = \"" + fault + "\"",
                 "test.toml")};
  std::map<std::string, LawResult> out;
  for (const auto& law : check_laws(recipe)) out[law.law] = law;
  return out;
}

TEST(Laws, AGoodMemberKeepsAll) {
  for (const auto& [name, law] : laws_of("none")) {
    EXPECT_TRUE(law.holds) << name << " " << law.difference;
    if (!law.applies) EXPECT_FALSE(law.note.empty()) << name;
  }
}

TEST(Laws, EachFaultIsCaught) {
  const std::pair<const char*, const char*> faults[] = {
      {"future", "causality"}, {"future", "split"}, {"forgets", "split"},   {"forgets", "forms"}, {"grows", "bounded"},
      {"position", "shift"},   {"lanes", "lanes"},  {"padding", "padding"}, {"form", "forms"}};
  for (const auto& [fault, law] : faults) {
    const LawResult found = laws_of(fault).at(law);
    EXPECT_TRUE(found.applies) << fault << " " << law;
    EXPECT_FALSE(found.holds) << fault << " must break " << law;
    EXPECT_GT(found.difference, 0) << fault << " " << law;
  }
  EXPECT_TRUE(laws_of("forgets").at("causality").holds);
  EXPECT_TRUE(laws_of("grows").at("split").holds);
}

}  // namespace
}  // namespace kinfolk
