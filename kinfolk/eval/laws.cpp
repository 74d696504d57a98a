#include "kinfolk/eval/laws.h"

#include <torch/csrc/autograd/autograd.h>

#include "kinfolk/core/errors.h"
#include "kinfolk/nn/model.h"

namespace kinfolk {
namespace {

constexpr int64_t kLength = 13;
constexpr double kBound = 1e-9;

struct Bench {
  std::shared_ptr<Model> model;
  Traits traits;
  Tensor tokens;  // [2, L]

  Tensor run(const Tensor& ids, State* state = nullptr, Form form = Form::automatic,
             const std::map<std::string, Tensor>& facts = {}) const {
    const Batch batch{ids, facts};
    std::map<std::string, Tensor> losses;
    Pass pass{batch};
    pass.state = state;
    pass.form = form;
    pass.losses = &losses;
    return model->forward(pass);
  }
  Tensor pieces(const std::vector<int64_t>& cuts, State* state = nullptr, Form form = Form::automatic) const {
    State own = model->start(tokens.size(0));
    State& carried = state ? *state : own;
    if (state) carried = model->start(tokens.size(0));
    std::vector<Tensor> out;
    int64_t from = 0;
    for (const int64_t to : cuts) {
      out.push_back(run(tokens.slice(1, from, to), &carried, form));
      from = to;
    }
    return at::cat(out, 1);
  }
  std::vector<Tensor> gradients(const Tensor& out) const {
    const Tensor weight = at::linspace(-1, 1, out.numel(), out.options()).view(out.sizes());
    return torch::autograd::grad({(out * weight).sum()}, parameters(), {}, true, false, true);
  }
  std::vector<Tensor> parameters() const {
    std::vector<Tensor> some;
    for (const auto& p : model->parameters())
      if (p.requires_grad()) some.push_back(p);
    return some;
  }
};

double apart(const Tensor& a, const Tensor& b) {
  if (a.numel() == 0) return 0;
  const double d = (a - b).abs().max().item<double>();
  return std::isnan(d) ? INFINITY : d;
}

LawResult result(const std::string& law, double difference, double bound = kBound) {
  return {law, difference <= bound, true, difference, ""};
}
LawResult excluded(const std::string& law, const std::string& why) { return {law, true, false, 0, why}; }

LawResult split_law(const Bench& bench) {
  if (!bench.traits.streams) return excluded("split", bench.traits.why_not);
  State whole_state = bench.model->start(2);
  const Tensor whole = bench.run(bench.tokens, &whole_state);
  const auto whole_gradients = bench.gradients(whole);
  double worst = apart(whole, bench.run(bench.tokens));
  std::vector<std::vector<int64_t>> all;
  for (int64_t cut = 1; cut < kLength; ++cut) all.push_back({cut, kLength});
  all.push_back({3, 8, kLength});
  all.emplace_back();
  for (int64_t t = 1; t <= kLength; ++t) all.back().push_back(t);
  for (const auto& cuts : all) {
    const Tensor out = bench.pieces(cuts);
    worst = std::max(worst, apart(out, whole));
    const auto gradients = bench.gradients(out);
    for (size_t i = 0; i < gradients.size(); ++i) {
      if (gradients[i].defined() != whole_gradients[i].defined()) worst = INFINITY;
      if (gradients[i].defined() && whole_gradients[i].defined())
        worst = std::max(worst, apart(gradients[i], whole_gradients[i]));
    }
  }
  return result("split", worst);
}

LawResult causality(const Bench& bench) {
  if (!bench.traits.causal) return excluded("causality", "it sees the future by construction");
  double worst = 0;
  const Tensor plain = bench.run(bench.tokens);
  for (int64_t t = 0; t + 1 < kLength; ++t) {
    Tensor changed = bench.tokens.clone();
    changed.slice(1, t + 1).add_(5).remainder_(17);
    worst = std::max(worst, apart(bench.run(changed).narrow(1, 0, t + 1), plain.narrow(1, 0, t + 1)));
  }
  return result("causality", worst, 0);
}

LawResult forms(const Bench& bench) {
  if (!bench.traits.streams) return excluded("forms", bench.traits.why_not);
  const Tensor plain = bench.run(bench.tokens, nullptr, Form::parallel);
  double worst = apart(bench.pieces({kLength}, nullptr, Form::chunked), plain);
  std::vector<int64_t> steps;
  for (int64_t t = 1; t <= kLength; ++t) steps.push_back(t);
  return result("forms", std::max(worst, apart(bench.pieces(steps, nullptr, Form::step), plain)));
}

LawResult padding(const Bench& bench) {
  // Lane 0 as it is; lane 1 with two tokens of padding before, one in the middle, one after.
  const Tensor plain = bench.run(bench.tokens);
  const int64_t longer = kLength + 4;
  Tensor ids = at::full({2, longer}, 3, at::kLong), valid = at::zeros({2, longer}, at::kBool);
  std::vector<std::vector<int64_t>> places(2);
  for (int64_t t = 0; t < kLength; ++t) places[0].push_back(t), places[1].push_back(t < 5 ? t + 2 : t + 3);
  for (int64_t b = 0; b < 2; ++b)
    for (int64_t t = 0; t < kLength; ++t) {
      ids[b][places[b][t]] = bench.tokens[b][t];
      valid[b][places[b][t]].fill_(true);
    }
  const Tensor out = bench.run(ids, nullptr, Form::automatic, {{"valid", valid}});
  double worst =
      out.masked_select(valid.logical_not().unsqueeze(-1)).abs().sum().item<double>();  // invalid rows are zero
  for (int64_t b = 0; b < 2; ++b)
    for (int64_t t = 0; t < kLength; ++t) worst = std::max(worst, apart(out[b][places[b][t]], plain[b][t]));
  return result("padding", worst);
}

LawResult lanes(const Bench& bench) {
  return result("lanes", apart(bench.run(bench.tokens.flip(0)).flip(0), bench.run(bench.tokens)));
}

LawResult documents(const Bench& bench) {
  if (!bench.traits.causal) return excluded("documents", "it sees the whole sequence");
  if (!bench.traits.relative) return excluded("documents", "positions are absolute and run on across documents");
  Tensor segment = at::zeros({2, kLength}, at::kLong);
  segment.slice(1, 6).fill_(1);
  const Tensor out = bench.run(bench.tokens, nullptr, Form::automatic, {{"segment", segment}});
  return result("documents", apart(out.slice(1, 6), bench.run(bench.tokens.slice(1, 6))));
}

LawResult shift(const Bench& bench) {
  if (!bench.traits.streams) return excluded("shift", bench.traits.why_not);
  if (!bench.traits.relative) return excluded("shift", "positions are absolute");
  State state = bench.model->start(2);
  state.tensors.at("seen").add_(bench.model->size().context * 8);
  return result("shift", apart(bench.run(bench.tokens, &state), bench.run(bench.tokens)));
}

LawResult bounded(const Bench& bench) {
  if (!bench.traits.streams) return excluded("bounded", bench.traits.why_not);
  if (!bench.traits.bounded) return excluded("bounded", "its state grows");
  State state = bench.model->start(2);
  const int64_t at_start = state.bytes();
  double worst = 0;
  for (int round = 0; round < 8; ++round) {
    bench.run(bench.tokens, &state);
    worst = std::max(worst, static_cast<double>(std::abs(state.bytes() - at_start)));
  }
  return result("bounded", worst, 0);
}

LawResult saved(const Bench& bench) {
  if (!bench.traits.streams) return excluded("saved", bench.traits.why_not);
  State state = bench.model->start(2);
  bench.run(bench.tokens.narrow(1, 0, 7), &state);
  State copy = State::from_flat(state.clone().flat());
  return result("saved", apart(bench.run(bench.tokens.slice(1, 7), &copy), bench.run(bench.tokens.slice(1, 7), &state)),
                0);
}

}  // namespace

std::vector<LawResult> check_laws(const Recipe& recipe, uint64_t seed) {
  Size size;
  size.depth = 2, size.width = 32, size.heads = 2, size.feed = 48, size.vocabulary = 17, size.context = 32;
  Bench bench;
  bench.model = Model::make(recipe, size, seed, at::TensorOptions().dtype(at::kDouble));
  bench.model->eval();
  bench.traits = bench.model->traits();
  bench.tokens =
      at::arange(2 * kLength, at::kLong).mul(7).add(static_cast<int64_t>(seed % 17)).remainder(17).view({2, kLength});
  std::vector<LawResult> out;
  for (const auto& law : {split_law, causality, forms, padding, lanes, documents, shift, bounded, saved})
    out.push_back(law(bench));
  return out;
}

}  // namespace kinfolk
