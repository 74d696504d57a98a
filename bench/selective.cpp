// bench_selective [ROW...]: the selective scan, the short convolution and the delta rules beside the same in torch
// operators, interleaved in one run, CPU time on one thread; time by length; steps far in a sequence beside steps near
// its start. A row is run when its name begins with one of the arguments; none: all rows.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <malloc.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <cstdio>
#include <ctime>
#include <fstream>
#include <functional>
#include <string>
#include <vector>

#include "kinfolk/kernels/isa.h"
#include "kinfolk/nn/model.h"
#include "kinfolk/ops/scan_delta.h"
#include "kinfolk/ops/scan_selective.h"
#include "kinfolk/ops/short_conv.h"

namespace {
using namespace kinfolk;

double seconds() {
  timespec now{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}
double timed(const std::function<void()>& f) {
  const double begin = seconds();
  f();
  return seconds() - begin;
}
double median(std::vector<double> x) {
  std::sort(x.begin(), x.end());
  return x[x.size() / 2];
}

/// A B A B ...: the median of both times and of their ratio.
void compare(const std::string& what, int rounds, const std::function<void()>& ours,
             const std::function<void()>& theirs) {
  ours(), theirs();
  std::vector<double> a, b, ratio;
  for (int round = 0; round < rounds; ++round) {
    a.push_back(timed(ours)), b.push_back(timed(theirs));
    ratio.push_back(b.back() / a.back());
  }
  std::printf("  %-56s kernel %8.2f ms   other %8.2f ms   ratio %.2f\n", what.c_str(), 1e3 * median(a), 1e3 * median(b),
              median(ratio));
  std::fflush(stdout);
}

using Run = std::function<Tensor(const std::vector<Tensor>& inputs)>;
void both_ways(const std::string& what, const std::vector<Tensor>& inputs, int rounds, const Run& ours,
               const Run& theirs) {
  const auto forward = [&](const Run& run) {
    return [&] {
      const at::NoGradGuard guard;
      run(inputs);
    };
  };
  const auto both = [&](const Run& run) {
    return [&] {
      std::vector<Tensor> leaves;
      for (const Tensor& t : inputs) leaves.push_back(t.detach().requires_grad_(true));
      const Tensor out = run(leaves);
      torch::autograd::grad({out}, leaves, {at::ones_like(out)});
    };
  };
  {
    const at::NoGradGuard guard;
    const Tensor a = ours(inputs), b = theirs(inputs);
    std::printf("  %s: apart by %.1e of the largest\n", what.c_str(),
                ((a - b).abs().max() / b.abs().max()).item<double>());
  }
  compare(what + ", forward", rounds, forward(ours), forward(theirs));
  compare(what + ", forward + backward", rounds, both(ours), both(theirs));
}

std::vector<Tensor> selective_inputs(int64_t L, int64_t E, int64_t N) {
  at::manual_seed(1);
  return {at::randn({1, L, E}), at::randn({1, L, E}) - 2, -at::rand({E, N}) * 4, at::randn({1, L, N}),
          at::randn({1, L, N}), at::randn({E}),           at::randn({1, L, E}),  at::randn({E})};
}
Tensor selective(const std::vector<Tensor>& in, bool plain) {
  SelectiveScan s{in[0], in[1], in[2], in[3], in[4], in[5], in[6], in[7]};
  s.plain = plain;
  return scan_selective(s, plain ? 16 : 64).out;
}

void row_selective() {
  for (const int64_t L : {2048, 2047}) {
    both_ways(
        "scan_selective 1x" + std::to_string(L) + "x1024x16", selective_inputs(L, 1024, 16), 5,
        [](const auto& in) { return selective(in, false); }, [](const auto& in) { return selective(in, true); });
  }
}

void row_conv() {
  at::manual_seed(1);
  for (const int64_t L : {2048, 2047}) {
    const auto run = [](const std::vector<Tensor>& in, bool plain) {
      ShortConv c{in[0], in[1], in[2], {}, true};
      c.plain = plain;
      return short_conv(c).out;
    };
    both_ways(
        "short_conv 1x" + std::to_string(L) + "x1024, 4 taps, silu",
        {at::randn({1, L, 1024}), at::randn({1024, 4}), at::randn({1024})}, 9,
        [&](const auto& in) { return run(in, false); }, [&](const auto& in) { return run(in, true); });
  }
}

Tensor delta(const std::vector<Tensor>& in, bool gated, bool plain) {
  DeltaScan s{in[0], in[1], in[2], in[3], {}, 0.125};
  if (gated) s.log_decay = in[4];
  s.plain = plain;
  return scan_delta(s, 64).out;
}
std::vector<Tensor> delta_inputs(int64_t L, bool gated) {
  at::manual_seed(1);
  const Tensor k = at::randn({1, 8, L, 64});
  std::vector<Tensor> in{at::randn({1, 8, L, 64}), k / k.norm(2, -1, true), at::randn({1, 8, L, 64}),
                         at::rand({1, 8, L})};
  if (gated) in.push_back(-at::rand({1, 8, L}));
  return in;
}

void row_delta() {
  for (const bool gated : {false, true}) {
    const std::string name = gated ? "gated delta" : "delta";
    for (const int64_t L : {4096, 4095}) {
      both_ways(
          name + " 1x8x" + std::to_string(L) + "x64 / torch operators", delta_inputs(L, gated), 5,
          [&](const auto& in) { return delta(in, gated, false); },
          [&](const auto& in) { return delta(in, gated, true); });
    }
    const std::vector<Tensor> in = delta_inputs(4096, gated);
    const auto both = [&](const std::function<Tensor(const std::vector<Tensor>&)>& run) {
      std::vector<Tensor> leaves;
      for (const Tensor& t : in) leaves.push_back(t.detach().requires_grad_(true));
      const Tensor out = run(leaves);
      torch::autograd::grad({out}, leaves, {at::ones_like(out)}, false, false, true);
    };
    compare(
        name + " 1x8x4096x64 / attention, forward + backward", 3,
        [&] { both([&](const auto& x) { return delta(x, gated, false); }); },
        [&] { both([](const auto& x) { return at::scaled_dot_product_attention(x[0], x[1], x[2], {}, 0, true); }); });
  }
}

/// Time a token at several lengths, interleaved.
void by_length(const std::string& what, const std::vector<int64_t>& lengths,
               const std::function<void(int64_t length)>& run) {
  std::vector<std::vector<double>> times(lengths.size());
  for (const int64_t L : lengths) run(L);
  for (int round = 0; round < 5; ++round) {
    for (size_t i = 0; i < lengths.size(); i++) {
      const int64_t repeats = std::max<int64_t>(1, 16384 / lengths[i]);
      times[i].push_back(timed([&] {
                           for (int64_t r = 0; r < repeats; r++) run(lengths[i]);
                         }) /
                         static_cast<double>(repeats * lengths[i]));
    }
  }
  std::printf("  %-40s", what.c_str());
  for (size_t i = 0; i < lengths.size(); i++) {
    std::vector<double> ratio;
    for (size_t r = 0; r < times[i].size(); r++) ratio.push_back(times[i][r] / times[0][r]);
    std::printf("  %ld: %.0f ns (%.2f)", static_cast<long>(lengths[i]), 1e9 * median(times[i]), median(ratio));
  }
  std::printf("\n");
  std::fflush(stdout);
}

void row_length() {
  const std::vector<int64_t> lengths{4096, 16384, 131072};
  std::printf("  ns a token (and of that at 4096)\n");
  for (const bool backward : {false, true}) {
    const std::string way = backward ? ", forward + backward" : ", forward";
    const auto run = [&](const auto& inputs_of, const auto& f) {
      std::vector<std::vector<Tensor>> all;
      for (const int64_t L : lengths) all.push_back(inputs_of(L));
      return [&lengths, all, f, backward](int64_t L) {
        const auto& in = all[static_cast<size_t>(std::find(lengths.begin(), lengths.end(), L) - lengths.begin())];
        if (!backward) {
          const at::NoGradGuard guard;
          f(in);
          return;
        }
        std::vector<Tensor> leaves;
        for (const Tensor& t : in) leaves.push_back(t.detach().requires_grad_(true));
        const Tensor out = f(leaves);
        torch::autograd::grad({out}, leaves, {out.detach()});
      };
    };
    by_length("scan_selective 256x16" + way, lengths,
              run([](int64_t L) { return selective_inputs(L, 256, 16); },
                  [](const auto& in) { return selective(in, false); }));
    by_length(
        "gated delta 8x64" + way, lengths,
        run([](int64_t L) { return delta_inputs(L, true); }, [](const auto& in) { return delta(in, true, false); }));
  }
}

double resident_mb() {
  std::ifstream in("/proc/self/statm");
  long pages = 0, resident = 0;
  in >> pages >> resident;
  return static_cast<double>(resident) * 4096 / 1e6;
}

/// Steps at position 1M, reached by chunks, beside steps at 1k; states saved at both.
void row_decode() {
  const at::NoGradGuard guard;
  for (const char* name : {"mamba", "mamba2", "gated_deltanet", "deltanet", "griffin", "gru", "hybrid_delta_window"}) {
    Size size;
    size.depth = 3, size.width = 64, size.heads = 4, size.feed = 128, size.vocabulary = 64;
    const auto model = Model::make(load_recipe(name), size);
    const Tensor tokens = at::randint(64, {1, 2048}, at::kLong);
    State state = model->start(1);
    model->score({tokens.narrow(1, 0, 1000), {}}, &state);
    State near = state.clone();
    for (int64_t at = 1000; at < 4000; at += 1000) model->score({tokens.narrow(1, 0, 1000), {}}, &state);
    const double early = resident_mb();
    const int64_t piece = std::string(name) == "gru" ? 1000 : 2000;
    for (int64_t at = 4000; at < 1000000; at += piece) model->score({tokens.narrow(1, 0, piece), {}}, &state);
    const double late = resident_mb();
    State far = state.clone();
    const auto steps = [&](State& from) {
      return timed([&] {
        for (int64_t t = 0; t < 20; t++) model->score({tokens.narrow(1, t, 1), {}}, &from);
      });
    };
    steps(near), steps(far);
    std::vector<double> a, b, ratio;
    for (int round = 0; round < 41; ++round) {
      a.push_back(steps(near)), b.push_back(steps(far));
      ratio.push_back(b.back() / a.back());
    }
    std::printf("  %-22s a step at 1k %.1f us, at 1M %.1f us, ratio %.3f; resident %.0f MB, then %.0f MB\n", name,
                1e6 * median(a) / 20, 1e6 * median(b) / 20, median(ratio), early, late);
    std::fflush(stdout);
  }
}

struct Row {
  const char* name;
  void (*run)();
};
const Row kRows[] = {{"selective", row_selective},
                     {"conv", row_conv},
                     {"delta", row_delta},
                     {"length", row_length},
                     {"decode", row_decode}};
}  // namespace

int main(int count, char** words) {
  at::set_num_threads(1);
  // Memory stays with the process on both sides: fresh pages are the system's time, and would be most of it.
  mallopt(M_MMAP_MAX, 0), mallopt(M_TRIM_THRESHOLD, -1);
  std::printf("kernels: %s\n", kernels::isa_name());
  for (const Row& row : kRows) {
    bool wanted = count < 2;
    for (int i = 1; i < count; i++) wanted = wanted || std::string(row.name).rfind(words[i], 0) == 0;
    if (!wanted) continue;
    std::printf("%s\n", row.name);
    row.run();
  }
}
