#include "kinfolk/nn/mixers/recurrent.h"

#include <gtest/gtest.h>

#include "kinfolk/reference/recurrent.h"
#include "tests/support/mixer_laws.h"

namespace kinfolk {
namespace {
using reference::small_context;
using reference::Tensors;

std::shared_ptr<Recurrent> make(const std::string& cell, const Context& context) {
  Recurrent::Options o;
  Value table = parse_toml("kind = \"" + cell.substr(0, cell.find(' ')) + "\"\n", "cell.toml");
  if (cell.find("before") != std::string::npos) table.set("reset", Value("before"));
  if (cell.find("hidden") != std::string::npos) table.set("hidden", Value(int64_t{5}));
  o.cell = Spec(table);
  return std::make_shared<Recurrent>(o, context);
}

/// A golden row through its cell, whole and in pieces; names: theirs to ours.
void expect_row(const std::string& row, const std::map<std::string, std::string>& names,
                const std::function<std::shared_ptr<Cell>(const golden::Case&, const Context&)>& cell_of) {
  for (const auto& one : golden::cases("recurrent/" + row)) {
    for (const auto type : {at::kFloat, at::kDouble}) {
      for (const bool cut : {false, true}) {
        const Tensor x = reference::leaf(one.at("in.x").to(type)), start = reference::leaf(one.at("in.h0").to(type));
        const auto cell = cell_of(one, small_context(x.size(2), 1, type));
        auto p = cell->named_parameters();
        ASSERT_EQ(p.size(), names.size());
        {
          const at::NoGradGuard guard;
          for (const auto& [theirs, ours] : names) p[ours].set_data(one.at("param." + theirs).to(type));
        }
        Tensor h = start;
        Tensors parts;
        int64_t from = 0;
        for (int64_t n : cut ? reference::pieces(one, x.size(1)) : std::vector<int64_t>{x.size(1)}) {
          const Ran ran = run_cell(*cell, x.narrow(1, from, n), h, {});
          parts.push_back(ran.h);
          h = ran.last;
          from += n;
        }
        const Tensors outputs{cell->write(at::cat(parts, 1)), h};
        golden::expect_close(outputs[0], one.at("out.y"), one, "y");
        golden::expect_close(outputs[1], one.at("out.h_last"), one, "h_last");
        Tensors by{x, start};
        std::vector<std::string> keys{"grad.x", "grad.h0"};
        for (const auto& [theirs, ours] : names) by.push_back(p[ours]), keys.push_back("grad." + theirs);
        const Tensors got =
            reference::gradients(outputs, {one.at("cot.y").to(type), one.at("cot.h_last").to(type)}, by);
        for (size_t i = 0; i < got.size(); i++) golden::expect_gradient(got[i], one.at(keys[i]), one, keys[i]);
      }
    }
  }
}
const std::map<std::string, std::string> kTorchNames{
    {"w_ih", "weight_ih"}, {"w_hh", "weight_hh"}, {"b_ih", "bias_ih"}, {"b_hh", "bias_hh"}};

TEST(Cells, GoldenGeneral) {
  const std::map<std::string, std::string> names{{"w_a", "w_a"}, {"b_a", "b_a"}, {"w_b", "w_b"},
                                                 {"b_b", "b_b"}, {"w_c", "w_c"}, {"b_c", "b_c"}};
  expect_row("rnn_general", names, [](const golden::Case& one, const Context& context) {
    return std::make_shared<GeneralCell>(HiddenOptions{one.at("in.h0").size(1)}, context);
  });
}
TEST(Cells, GoldenTanh) {
  expect_row("rnn_tanh", kTorchNames, [](const golden::Case& one, const Context& context) {
    return std::make_shared<TanhCell>(HiddenOptions{one.at("in.h0").size(1)}, context);
  });
}
TEST(Cells, GoldenGru) {
  expect_row("gru", kTorchNames, [](const golden::Case& one, const Context& context) {
    return std::make_shared<GruCell>(
        GruCell::Options{one.at("in.h0").size(1),
                         one.config.value("variant", "after") == "before" ? "before" : "after"},
        context);
  });
}

TEST(Cells, AreTheirLoops) {
  const Tensor x = at::randn({2, 9, 6}, at::kDouble), h = at::randn({2, 5}, at::kDouble);
  for (const bool before : {false, true}) {
    GruCell gru({5, before ? "before" : "after"}, small_context());
    const auto want = reference::gru(x, h, gru.weight_ih, gru.weight_hh, gru.bias_ih, gru.bias_hh, before);
    reference::expect_near(run_cell(gru, x, h, {}).h, want.y, 1e-12, "gru");
  }
  TanhCell plain({5}, small_context());
  reference::expect_near(run_cell(plain, x, h, {}).h,
                         reference::rnn_tanh(x, h, plain.weight_ih, plain.weight_hh, plain.bias_ih, plain.bias_hh).y,
                         1e-12, "tanh");
}

struct RecurrentMixers : testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(All, RecurrentMixers, testing::Values("general", "tanh hidden", "gru", "gru before hidden"),
                         [](const auto& info) {
                           std::string name = info.param;
                           std::replace(name.begin(), name.end(), ' ', '_');
                           return name;
                         });
TEST_P(RecurrentMixers, FormsAgree) { reference::expect_forms_agree(*make(GetParam(), small_context()), 6); }
TEST_P(RecurrentMixers, SplitsAgree) { reference::expect_splits_agree(*make(GetParam(), small_context()), 6, 30); }
TEST_P(RecurrentMixers, StreamingLaws) { reference::expect_streaming_laws(*make(GetParam(), small_context()), 6); }
TEST_P(RecurrentMixers, GradientsMatchFiniteDifferences) {
  reference::expect_mixer_gradients(*make(GetParam(), small_context(4, 1)), 4);
}

TEST(RecurrentMixer, RefusesAnUnknownCell) {
  try {
    make("gruu", small_context());
    FAIL();
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("gru"), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace kinfolk
