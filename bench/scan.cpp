// bench_scan [ROW...]: recurrences against what PyTorch offers, interleaved in one run, CPU time on one thread. A row
// is run when its name begins with one of the arguments; none: all rows.
#include <malloc.h>

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <cstdio>
#include <ctime>
#include <functional>
#include <string>
#include <vector>

#include "kinfolk/core/errors.h"
#include "kinfolk/kernels/isa.h"
#include "kinfolk/ops/scan_decay.h"

namespace {
using namespace kinfolk;
using Tensors = std::vector<Tensor>;

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
  if (rounds > 1) ours(), theirs();
  std::vector<double> a, b, ratio;
  for (int round = 0; round < rounds; ++round) {
    a.push_back(timed(ours)), b.push_back(timed(theirs));
    ratio.push_back(b.back() / a.back());
  }
  std::printf("  %-52s ours %9.2f ms   other %9.2f ms   ratio %.2f\n", what.c_str(), 1e3 * median(a), 1e3 * median(b),
              median(ratio));
  std::fflush(stdout);
}

/// GFLOP/s of torch.mm at this moment.
void print_mm() {
  const at::NoGradGuard guard;
  const Tensor a = at::randn({1024, 1024}), b = at::randn({1024, 1024});
  at::mm(a, b);
  std::vector<double> t;
  for (int i = 0; i < 7; i++) t.push_back(timed([&] { at::mm(a, b); }));
  std::printf("  torch.mm of 1024: %.0f GFLOP/s; kernels: %s\n", 2.147483648 / median(t), kernels::isa_name());
}

/// The good plain form: one loop over chunks, matrix products and the exponential of cumulated log decays.
Tensor torch_chunk(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& log_decay, int64_t C) {
  const int64_t n = q.size(2) / C;
  const auto cut = [&](const Tensor& t) { return t.unflatten(2, {n, C}); };
  const Tensor qs = cut(q), ks = cut(k), vs = cut(v);  // [B, H, n, C, d]
  const Tensor c = cut(log_decay).cumsum(-1);          // [B, H, n, C]
  const Tensor upper = at::ones({C, C}, at::kBool).triu(1);
  const Tensor decay = (c.unsqueeze(-1) - c.unsqueeze(-2)).masked_fill(upper, -INFINITY).exp();
  const Tensor inner = at::matmul(at::matmul(qs, ks.transpose(-1, -2)) * decay, vs);
  const Tensor seen = qs * c.exp().unsqueeze(-1), last = c.narrow(-1, C - 1, 1);
  const Tensor written = at::matmul((ks * (last - c).exp().unsqueeze(-1)).transpose(-1, -2), vs);
  const Tensors news = written.unbind(2), whole = last.exp().unsqueeze(-1).unbind(2);
  Tensors states;
  Tensor state = at::zeros_like(news[0]);
  for (int64_t i = 0; i < n; i++) {
    states.push_back(state);
    state = whole[i] * state + news[i];
  }
  return (inner + at::matmul(seen, at::stack(states, 2))).flatten(2, 3);
}

/// The same with everything in the loop.
Tensor torch_loop(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& log_decay, int64_t C) {
  const Tensor upper = at::ones({C, C}, at::kBool).triu(1);
  Tensors out;
  Tensor state = at::zeros({q.size(0), q.size(1), q.size(3), v.size(3)});
  for (int64_t from = 0; from < q.size(2); from += C) {
    const auto part = [&](const Tensor& t) { return t.narrow(2, from, C); };
    const Tensor qs = part(q), ks = part(k), vs = part(v), c = part(log_decay).cumsum(-1);
    const Tensor decay = (c.unsqueeze(-1) - c.unsqueeze(-2)).masked_fill(upper, -INFINITY).exp();
    const Tensor last = c.narrow(-1, C - 1, 1);
    out.push_back(at::matmul(at::matmul(qs, ks.transpose(-1, -2)) * decay, vs) +
                  at::matmul(qs * c.exp().unsqueeze(-1), state));
    state = last.exp().unsqueeze(-1) * state + at::matmul((ks * (last - c).exp().unsqueeze(-1)).transpose(-1, -2), vs);
  }
  return at::cat(out, 2);
}

struct Problem {
  Tensor q, k, v, gate;
  DecayScan scan;
  /// gate: 0 none, 1 a token, 2 a key channel.
  Problem(int64_t L, int gate_kind, bool gradients, double strength = 0.1) {
    at::manual_seed(1);
    const auto draw = [&] { return at::randn({1, 8, L, 64}).requires_grad_(gradients); };
    q = draw(), k = draw(), v = draw();
    if (gate_kind == 1) gate = (at::rand({1, 8, L}) * (-2 * strength)).requires_grad_(gradients);
    if (gate_kind == 2) gate = (at::rand({1, 8, L, 64}) * (-2 * strength)).requires_grad_(gradients);
    scan = {q, k, v};
    scan.scale = 0.125;
    scan.gate.key = gate, scan.gate.log = true;
  }
  Tensor ours() const { return scan_decay(scan, 64).out; }
  Tensor chunk() const { return torch_chunk(q * 0.125, k, v, gate, 64); }
  Tensor loop() const { return torch_loop(q * 0.125, k, v, gate, 64); }
  Tensor attention() const { return at::scaled_dot_product_attention(q, k, v, {}, 0.0, true); }
  void backward(const Tensor& out, bool gated = true) const {
    Tensors by{q, k, v};
    if (gated && gate.defined()) by.push_back(gate);
    torch::autograd::grad({out}, by, {at::ones_like(out)});
  }
};

void against(const std::string& what, int rounds, const Problem& p, const std::function<Tensor()>& other,
             bool other_gated) {
  {
    const at::NoGradGuard guard;
    compare(
        what + " forward", rounds, [&] { p.ours(); }, [&] { other(); });
  }
  compare(
      what + " forward + backward", rounds, [&] { p.backward(p.ours()); }, [&] { p.backward(other(), other_gated); });
}

double off(const Tensor& a, const Tensor& b) {
  return ((a.to(at::kDouble) - b).abs().max() / b.abs().max()).item<double>();
}

void decay_token() {
  for (const int64_t L : {4096, 4000, 65536}) {
    const Problem p(L, 1, true);
    if (L % 64 == 0) {
      std::printf("  %ld: off torch_chunk by %.1e\n", L, off(p.ours(), p.chunk().to(at::kDouble)));
      against(
          text("a token ", L, " vs torch_chunk"), L > 10000 ? 1 : 5, p, [&] { return p.chunk(); }, true);
    }
    if (L == 4096) {
      against(
          "a token 4096 vs torch_loop", 5, p, [&] { return p.loop(); }, true);
    }
    if (L < 10000) {
      against(
          text("a token ", L, " vs causal attention"), 5, p, [&] { return p.attention(); }, false);
    }
  }
}

void decay_channel() {
  for (const int64_t L : {4096, 4000}) {
    const Problem p(L, 2, true);
    against(
        text("a key channel ", L, " vs causal attention"), 5, p, [&] { return p.attention(); }, false);
  }
}

void decay_none() {
  const Problem p(4096, 0, true);
  against(
      "no decay 4096 vs causal attention", 5, p, [&] { return p.attention(); }, false);
}

/// Time per token at 131072 over that at 4096.
void decay_length() {
  for (const int kind : {1, 2}) {
    const Problem small(4096, kind, true), large(131072, kind, true);
    std::vector<double> forward, both;
    for (int round = 0; round < 3; round++) {
      const auto ratio = [&](const auto& run) {
        double little = 0;
        for (int i = 0; i < 8; i++) little += timed([&] { run(small); }) / 8;
        return timed([&] { run(large); }) / little / 32;
      };
      {
        const at::NoGradGuard guard;
        forward.push_back(ratio([](const Problem& p) { p.ours(); }));
      }
      both.push_back(ratio([](const Problem& p) { p.backward(p.ours()); }));
    }
    std::printf("  %s, time per token at 131072 over 4096: forward %.2f, forward + backward %.2f\n",
                kind == 1 ? "a token" : "a key channel", median(forward), median(both));
    std::fflush(stdout);
  }
}

/// Largest error over largest value against the steps in double, beside a float32 loop of steps.
void decay_accuracy() {
  const at::NoGradGuard guard;
  for (const int kind : {0, 1, 2}) {
    for (const double strength : {0.1, 3.0, 30.0}) {
      Problem p(2048, kind, false, strength);
      DecayScan wide = p.scan;
      for (Tensor* t : {&wide.q, &wide.k, &wide.v, &wide.gate.key})
        if (t->defined()) *t = t->to(at::kDouble);
      const DecayScanned exact = scan_decay_steps(wide), loop = scan_decay_steps(p.scan), got = scan_decay(p.scan, 64);
      std::printf("  gate %d, mean log decay -%.1f: out %.1e (loop %.1e), state %.1e (loop %.1e)\n", kind, strength,
                  off(got.out, exact.out), off(loop.out, exact.out), off(got.state, exact.state),
                  off(loop.state, exact.state));
    }
  }
}

struct Row {
  const char* name;
  void (*run)();
};
constexpr Row kRows[] = {{"decay_token", decay_token},
                         {"decay_channel", decay_channel},
                         {"decay_none", decay_none},
                         {"decay_length", decay_length},
                         {"decay_accuracy", decay_accuracy}};

}  // namespace

int main(int count, char** words) {
  at::set_num_threads(1);
  // Memory stays with the process on both sides: fresh pages are the system's time, and would be most of it.
  mallopt(M_MMAP_MAX, 0), mallopt(M_TRIM_THRESHOLD, -1);
  for (const Row& row : kRows) {
    bool wanted = count < 2;
    for (int i = 1; i < count; i++) wanted = wanted || std::string(row.name).rfind(words[i], 0) == 0;
    if (!wanted) continue;
    std::printf("%s\n", row.name);
    print_mm();
    row.run();
  }
}
