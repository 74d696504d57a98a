// Every recurrent operator reads tensors of any memory layout as it reads their copies, values and gradients.
#include <gtest/gtest.h>

#include "kinfolk/ops/scan_decay.h"
#include "kinfolk/ops/scan_delta.h"
#include "kinfolk/ops/scan_elementwise.h"
#include "kinfolk/ops/scan_selective.h"
#include "kinfolk/ops/short_conv.h"
#include "kinfolk/reference/scan_checks.h"

namespace kinfolk {
namespace {
using reference::Tensors;

struct Scan {
  std::string name;
  Tensors inputs;
  std::function<Tensors(const Tensors&)> run;
};

/// Of L tokens: the kernels of whole sequences, and those of steps where nothing wants a gradient.
std::vector<Scan> scans(int64_t L, bool steps) {
  at::manual_seed(9);
  const auto draw = [](at::IntArrayRef sizes) { return at::randn(sizes); };
  const auto gate = [](at::IntArrayRef sizes) { return at::rand(sizes) * -0.5; };
  const auto pair = [](const auto& done) { return Tensors{done.out, done.state}; };
  const Tensor q = draw({2, 3, L, 16}), k = draw({2, 3, L, 16}) / 4, v = draw({2, 3, L, 32}),
               state = draw({2, 3, 16, 32});
  std::vector<Scan> all;
  for (const std::string kind : {"token", "channel", "value", "rank one"}) {
    Tensors in{q, k, v, state};
    if (kind == "token") in.push_back(gate({2, 3, L}));
    if (kind == "channel") in.push_back(gate({2, 3, L, 16}));
    if (kind == "value") in.push_back(gate({2, 3, L, 32}));
    if (kind == "rank one") in.push_back(gate({2, 3, L, 16})), in.push_back(gate({2, 3, L, 32}));
    all.push_back({"decay " + kind, in, [=](const Tensors& t) {
                     DecayScan s{t[0], t[1], t[2], t[3]};
                     s.gate.log = true;
                     (kind == "value" ? s.gate.value : s.gate.key) = t[4];
                     if (kind == "rank one") s.gate.value = t[5];
                     return pair(steps ? scan_decay_steps(s) : scan_decay(s, 16));
                   }});
  }
  all.push_back({"delta", {q, k, v, at::rand({2, 3, L}), state, gate({2, 3, L})}, [=](const Tensors& t) {
                   DeltaScan s{t[0], t[1], t[2], t[3], t[4]};
                   s.log_decay = t[5];
                   return pair(steps ? scan_delta_steps(s) : scan_delta(s, 16));
                 }});
  all.push_back({"elementwise", {draw({2, L, 24}), at::rand({2, L, 24}), draw({2, 24})}, [=](const Tensors& t) {
                   return pair(scan_elementwise({t[0], t[1], t[2]}));
                 }});
  all.push_back({"selective",
                 {draw({2, L, 32}), draw({2, L, 32}), -at::rand({32, 8}), draw({2, L, 8}), draw({2, L, 8}), draw({32}),
                  draw({2, L, 32}), draw({32}), draw({2, 32, 8})},
                 [=](const Tensors& t) {
                   return pair(scan_selective({t[0], t[1], t[2], t[3], t[4], t[5], t[6], t[7], t[8]}, 16));
                 }});
  all.push_back({"short_conv", {draw({2, L, 20}), draw({20, 4}), draw({20}), draw({2, 20, 3})}, [=](const Tensors& t) {
                   return pair(short_conv({t[0], t[1], t[2], t[3], true}));
                 }});
  return all;
}

/// The same numbers, lying otherwise.
const std::vector<std::pair<std::string, std::function<Tensor(const Tensor&)>>>& layouts() {
  static const std::vector<std::pair<std::string, std::function<Tensor(const Tensor&)>>> all{
      {"transposed",
       [](const Tensor& t) { return t.dim() < 2 ? t : t.transpose(-1, -2).contiguous().transpose(-1, -2); }},
      {"heads transposed",
       [](const Tensor& t) { return t.dim() < 3 ? t : t.transpose(1, 2).contiguous().transpose(1, 2); }},
      {"every second row",
       [](const Tensor& t) {
         return at::stack({t, t + 1}, 1).flatten(0, 1).slice(0, 0, {}, 2);
       }},
      {"every second column",
       [](const Tensor& t) {
         return at::stack({t, t + 1}, t.dim()).flatten(-2).slice(-1, 0, {}, 2);
       }},
      {"from the middle",
       [](const Tensor& t) {
         return at::cat({t + 1, t, t + 2}, 0).slice(0, -2 * t.size(0), -t.size(0));
       }},
      {"columns from the middle", [](const Tensor& t) {
         return at::cat({t + 1, t, t + 2}, -1).slice(-1, -2 * t.size(-1), -t.size(-1));
       }}};
  return all;
}

Tensors with_gradients(const Scan& scan, const Tensors& leaves, const std::function<Tensor(const Tensor&)>& layout) {
  Tensors in;
  for (const Tensor& t : leaves) in.push_back(layout(t));
  Tensors all = scan.run(in);
  for (const Tensor& g : reference::gradients(all, reference::cotangents(all), leaves)) all.push_back(g);
  return all;
}
const auto as_it_is = [](const Tensor& t) { return t; };

void expect_equal(const Tensors& got, const Tensors& want, const std::string& what) {
  ASSERT_EQ(got.size(), want.size()) << what;
  for (size_t i = 0; i < got.size(); i++) reference::expect_near(got[i], want[i], 1e-6, text(what, " tensor ", i));
}

TEST(ScanLayouts, ValuesAndGradientsOfWholeSequences) {
  for (const Scan& scan : scans(37, false)) {
    const Tensors leaves = reference::leaves(scan.inputs), want = with_gradients(scan, leaves, as_it_is);
    for (const auto& [name, layout] : layouts()) {
      expect_equal(with_gradients(scan, leaves, layout), want, scan.name + " " + name);
    }
  }
}

TEST(ScanLayouts, Steps) {
  const at::NoGradGuard guard;
  for (const int64_t length : {1, 5}) {
    for (const Scan& scan : scans(length, true)) {
      const Tensors want = scan.run(scan.inputs);
      for (const auto& [name, layout] : layouts()) {
        Tensors in;
        for (const Tensor& t : scan.inputs) in.push_back(layout(t));
        const Tensors before = [&] {
          Tensors copies;
          for (const Tensor& t : in) copies.push_back(t.clone());
          return copies;
        }();
        expect_equal(scan.run(in), want, scan.name + " " + name);
        for (size_t i = 0; i < in.size(); i++)
          EXPECT_TRUE(in[i].equal(before[i])) << scan.name << " wrote to input " << i;
      }
    }
  }
}

// One row for all lanes or tokens: a stride of 0.
TEST(ScanLayouts, Expanded) {
  for (const Scan& scan : scans(37, false)) {
    for (size_t i = 0; i < scan.inputs.size(); i++) {
      for (int64_t dim = 0; dim < scan.inputs[i].dim(); dim++) {
        Tensors spread = scan.inputs, copied = scan.inputs;
        spread[i] = scan.inputs[i].narrow(dim, 0, 1).expand_as(scan.inputs[i]);
        copied[i] = spread[i].contiguous();
        expect_equal(scan.run(spread), scan.run(copied), text(scan.name, " input ", i, " along ", dim));
      }
    }
  }
}

}  // namespace
}  // namespace kinfolk
