#include "kinfolk/eval/bench_scan.h"

#include "kinfolk/core/errors.h"
#include "kinfolk/core/memory.h"
#include "kinfolk/eval/bench_scan_kinds.h"
#include "kinfolk/nn/model.h"

namespace kinfolk {
namespace {

constexpr int64_t kHeads = 8, kWidth = 64;
constexpr int64_t kLongestAttention = 16384;  // beyond, its time is that at this length, times the square of the rest

Tensors leaves_of(const Tensors& in) {
  Tensors out;
  for (const Tensor& t : in) out.push_back(t.detach().requires_grad_(true));
  return out;
}
Side side_of(const std::function<Tensor(const Tensors&)>& run, const Tensors& in) {
  return {[run, in] { return run(in); }, in};
}

void against_attention(BenchRun& run) {
  for (const int64_t length : run.lengths({4096}, {4097, 65536})) {
    const int64_t measured = std::min(length, kLongestAttention);
    const auto draw = [&] { return at::randn({1, kHeads, measured, kWidth}).requires_grad_(true); };
    const Tensors qkv{draw(), draw(), draw()};
    const Side attention{[qkv] { return at::scaled_dot_product_attention(qkv[0], qkv[1], qkv[2], {}, 0.0, true); },
                         qkv};
    const double farther = static_cast<double>(length) / static_cast<double>(measured);
    for (const ScanKind& kind : scan_kinds()) {
      const Tensors in = leaves_of(kind.inputs(length));
      const double flops = 3.5 * static_cast<double>(length) * kind.forward_flops;
      run.contest({.what = kind.name,
                   .length = length,
                   .other = farther > 1 ? text("SDPA, ", measured, " squared up") : "SDPA",
                   .both_flops = flops,
                   .both_goal = kind.attention,
                   .forward = false,
                   .scale = farther * farther},
                  side_of(kind.ours, in), attention);
    }
  }
}

void against_plain(BenchRun& run) {
  for (const int64_t length : run.lengths({4096}, {4097, 65536})) {
    for (const ScanKind& kind : scan_kinds()) {
      const Tensors in = leaves_of(kind.inputs(length));
      const double flops = static_cast<double>(length) * kind.forward_flops;
      run.contest({kind.name, length, kind.plain_name, flops, 3.5 * flops, kind.plain_forward, kind.plain_both},
                  side_of(kind.ours, in), side_of(kind.plain, in));
    }
  }
}

void growth(BenchRun& run) {
  const auto lengths = run.stretch(4096, run.full() ? 131072 : 65536);
  const double times = static_cast<double>(lengths.second) / static_cast<double>(lengths.first);
  for (const ScanKind& kind : scan_kinds()) {
    const Side near = side_of(kind.ours, leaves_of(kind.inputs(lengths.first)));
    const Side far = side_of(kind.ours, leaves_of(kind.inputs(lengths.second)));
    for (const bool both : {false, true}) {
      const auto a = both ? both_of(near) : forward_of(near), b = both ? both_of(far) : forward_of(far);
      const std::string what = kind.name + (both ? ", with backward" : ", forward");
      run.growth(what, lengths, 1.1, [&](bool longer) { (longer ? b : a)(); });
      if (lengths.first == lengths.second) continue;
      BenchRow row;
      row.what = what + ": memory", row.length = lengths.second, row.unit = "B";
      row.theirs = times * static_cast<double>(run.peak(a)), row.ours = static_cast<double>(run.peak(b));
      row.other = text(times, " times that at ", lengths.first), row.ratio = row.ours / std::max(1.0, row.theirs);
      row.goal = Goal{1.1, true};
      run.add(row);
    }
  }
}

/// Steps of whole models far in a text beside steps near its start; states saved at both.
void decode(BenchRun& run) {
  const at::NoGradGuard guard;
  const int64_t far_at = run.stretch(0, run.full() ? 1000000 : 50000).second, near_at = std::min<int64_t>(1000, far_at);
  std::vector<const char*> names = {"gated_deltanet", "mamba"};
  if (run.full())
    names = {"retnet", "gla", "deltanet", "gated_deltanet", "mamba", "mamba2", "griffin", "gru", "hybrid_delta_window"};
  for (const char* name : names) {
    Size size;
    size.depth = 3, size.width = 64, size.heads = 4, size.feed = 128, size.vocabulary = 64;
    const auto model = Model::make(load_recipe(name), size);
    const Tensor tokens = at::randint(64, {1, 2000}, at::kLong);
    State state = model->start(1), near;
    double early = 0;
    for (int64_t at = 0; at < far_at;) {
      const int64_t piece = std::min({at < 4 * near_at ? near_at : int64_t{2000}, tokens.size(1), far_at - at});
      model->score({tokens.narrow(1, 0, piece), {}}, &state);
      at += piece;
      if (at == near_at) near = state.clone();
      if (at <= 4 * near_at) early = static_cast<double>(resident_bytes());
      run.note(text(name, ": reads up to position ", far_at, ", is at ", at));
    }
    const auto late = static_cast<double>(resident_bytes());
    const Tensor token = tokens.narrow(1, 0, 1);
    State far = state.clone();
    run.step(
        text(name, ", a step"), far_at, text("at ", near_at), 0,
        [&] {
          model->score({token, {}}, &far);
        },
        [&] {
          model->score({token, {}}, &near);
        },
        Goal{1 / 1.1});
    BenchRow row;
    row.what = text(name, ": resident memory"), row.length = far_at, row.unit = "B", row.ours = late,
    row.theirs = early;
    row.other = text("at ", std::min(4 * near_at, far_at)), row.ratio = late / early, row.goal = Goal{1.1, true};
    run.add(row);
  }
}

/// The largest difference over the largest value.
double off(const Tensor& a, const Tensor& exact) {
  return ((a.to(at::kDouble) - exact).abs().max() / exact.abs().max()).item<double>();
}

void accuracy(BenchRun& run) {
  const at::NoGradGuard guard;
  for (const int64_t length : run.lengths({2048})) {
    for (const ScanKind& kind : scan_kinds()) {
      if (!kind.steps) continue;
      run.note(text(kind.name, " ", length, ", steps in float64"));
      const Tensors in = kind.inputs(length);
      Tensors wide;
      for (const Tensor& t : in) wide.push_back(t.to(at::kDouble));
      const Tensor exact = kind.steps(wide);
      BenchRow row;
      row.what = kind.name + ": error", row.length = length, row.other = "float32, in steps";
      row.ours = off(kind.ours(in), exact), row.theirs = off(kind.steps(in), exact);
      row.ratio = row.ours / row.theirs, row.goal = Goal{4, true};
      run.add(row);
    }
  }
}

struct Group {
  const char *name, *about;
  void (*run)(BenchRun&);
};
constexpr Group kGroups[] = {
    {"attention", "each with its gradients against causal SDPA, which is measured up to 16384", against_attention},
    {"plain", "each against a good form in torch operators", against_plain},
    {"growth", "time and memory a token by length", growth},
    {"decode", "a step of small models far in a text against one near its start, and their memory", decode},
    {"accuracy", "errors in float32 against steps in float64, beside those of float32 steps", accuracy}};

}  // namespace

const std::vector<std::pair<std::string, std::string>>& bench_scan_groups() {
  static const auto all = [] {
    std::vector<std::pair<std::string, std::string>> out;
    for (const Group& group : kGroups) out.emplace_back(group.name, group.about);
    return out;
  }();
  return all;
}

void bench_scan(BenchRun& run) {
  at::manual_seed(1);
  for (const Group& group : kGroups)
    if (run.wants(group.name)) group.run(run);
}

}  // namespace kinfolk
