// scan_elementwise: the kernel against the formula, pieces, gaps, borders, extreme decays, layouts, gradients.
#include "kinfolk/ops/scan_elementwise.h"

#include <gtest/gtest.h>

#include "kinfolk/reference/decay.h"
#include "kinfolk/reference/scan_checks.h"

namespace kinfolk {
namespace {
using reference::Tensors;

ElementScan random_scan(int64_t B, int64_t L, int64_t E, at::ScalarType type = at::kFloat) {
  at::manual_seed(3);
  const auto as = at::TensorOptions().dtype(type);
  return {at::randn({B, L, E}, as), at::rand({B, L, E}, as), at::randn({B, E}, as)};
}
ElementScan with(ElementScan s, const Tensors& in) {
  s.x = in[0], s.decay = in[1], s.state = in[2];
  return s;
}
ElementScan wide(ElementScan s) {
  for (Tensor* t : {&s.x, &s.decay, &s.state}) *t = t->to(at::kDouble);
  return s;
}

using Scan = std::function<Tensors(const ElementScan&)>;
Tensors scanned(const ElementScan& s) {
  const ElementScanned done = scan_elementwise(s);
  return {done.out, done.state};
}
/// The definition, in the type of its inputs.
Tensors walked(const ElementScan& s) {
  Tensors out;
  Tensor h = s.state;
  const Tensor border = borders(s.lanes);
  for (int64_t t = 0; t < s.x.size(1); t++) {
    const Tensor a = s.log ? s.decay.select(1, t).exp() : s.decay.select(1, t);
    Tensor from = border.defined() ? h.masked_fill(border.select(1, t).unsqueeze(-1), 0) : h;
    Tensor next = a * from + s.x.select(1, t);
    if (s.lanes.valid.defined()) {
      const Tensor real = s.lanes.valid.select(1, t).unsqueeze(-1);
      out.push_back(at::where(real, next, at::zeros_like(next)));
      h = at::where(real, next, h);
    } else {
      out.push_back(next), h = next;
    }
  }
  return {at::stack(out, 1), h};
}
Tensors values_and_gradients(const ElementScan& s, const Scan& run) {
  const Tensors in = reference::leaves({s.x, s.decay, s.state});
  Tensors all = run(with(s, in));
  for (const Tensor& g : reference::gradients(all, reference::cotangents(all), in)) all.push_back(g);
  return all;
}
void expect_all(const Tensors& got, const Tensors& want, double tolerance, const std::string& what) {
  ASSERT_EQ(got.size(), want.size());
  for (size_t i = 0; i < got.size(); i++) reference::expect_near(got[i], want[i], tolerance, text(what, " tensor ", i));
}

TEST(ScanElementwise, AgreesWithTheFormula) {
  for (const int64_t B : {1, 3}) {
    for (const int64_t L : {1, 2, 17, 130}) {
      for (const int64_t E : {1, 7, 16, 100}) {
        for (const int marks : {0, 1, 2, 3}) {
          ElementScan s = random_scan(B, L, E);
          if (marks & 1) s.lanes.valid = at::rand({B, L}) > 0.3;
          if (marks & 2) s.lanes.first = at::rand({B, L}) > 0.8;
          if (marks == 3) s.log = true, s.decay = s.decay.log();
          const std::string what = text("B ", B, " L ", L, " E ", E, " marks ", marks);
          const Tensors want = values_and_gradients(wide(s), walked);
          expect_all(values_and_gradients(s, scanned), want, 1e-5, what);
          expect_all(values_and_gradients(wide(s), scanned), want, 1e-10, what + " double");
        }
      }
    }
  }
}

TEST(ScanElementwise, EverySplitGivesTheSame) {
  const at::NoGradGuard guard;
  const ElementScan s = random_scan(2, 70, 19);
  const Tensors want = scanned(s);
  for (int64_t split = 0; split <= 70; split++) {
    ElementScan one = s, two = s;
    one.x = s.x.narrow(1, 0, split), one.decay = s.decay.narrow(1, 0, split);
    two.x = s.x.narrow(1, split, 70 - split), two.decay = s.decay.narrow(1, split, 70 - split);
    const Tensors first = scanned(one);
    two.state = first[1];
    const Tensors second = scanned(two);
    EXPECT_TRUE(at::cat({first[0], second[0]}, 1).equal(want[0])) << split;
    EXPECT_TRUE(second[1].equal(want[1])) << split;
  }
}

// Logarithms of -50 on some channels, 0 on others, exact zeros and ones, signs: finite and equal to the formula.
TEST(ScanElementwise, ExtremeDecays) {
  for (const int sort : {0, 1, 2, 3}) {
    ElementScan s = random_scan(1, 130, 40);
    if (sort == 0) s.log = true, s.decay = (s.decay > 0.5).to(at::kFloat) * -50;
    if (sort == 1) s.log = true, s.decay = at::where(s.decay > 0.7, at::full_like(s.decay, -INFINITY), -1e-3 * s.decay);
    if (sort == 2) s.decay = (s.decay > 0.5).to(at::kFloat);
    if (sort == 3) s.decay = 1 - 2 * s.decay;
    expect_all(values_and_gradients(s, scanned), values_and_gradients(wide(s), walked), 2e-5, text("sort ", sort));
  }
}

TEST(ScanElementwise, GradientsMatchFiniteDifferences) {
  ElementScan s = random_scan(2, 5, 3, at::kDouble);
  s.lanes.valid = at::ones({2, 5}, at::kBool), s.lanes.first = at::zeros({2, 5}, at::kBool);
  s.lanes.valid[1][2].fill_(false), s.lanes.first[0][3].fill_(true);
  reference::expect_gradients([&](const Tensors& in) { return scanned(with(s, in)); }, {s.x, s.decay, s.state}, "");
}

TEST(ScanElementwise, InvalidTokensMayHoldAnything) {
  ElementScan s = random_scan(2, 20, 16);
  s.lanes.valid = at::ones({2, 20}, at::kBool);
  s.lanes.valid.narrow(1, 8, 3).fill_(false);
  const Tensors want = values_and_gradients(s, scanned);
  s.x.narrow(1, 8, 3).fill_(NAN), s.decay.narrow(1, 8, 3).fill_(NAN);
  expect_all(values_and_gradients(s, scanned), want, 0, "filled");
}

TEST(ScanElementwise, AnyMemoryLayout) {
  const ElementScan s = random_scan(2, 33, 20);
  const Tensors want = values_and_gradients(s, scanned);
  const std::vector<std::function<Tensor(const Tensor&)>> layouts{
      [](const Tensor& t) { return t.transpose(1, 2).contiguous().transpose(1, 2); },
      [](const Tensor& t) {
        return at::stack({t, t}, 2).flatten(1, 2).slice(1, 0, c10::nullopt, 2);
      },
      [](const Tensor& t) {
        return at::cat({t, t}, 2).narrow(2, t.size(2), t.size(2));
      }};
  for (const auto& layout : layouts) {
    expect_all(values_and_gradients(s,
                                    [&](ElementScan x) {
                                      x.x = layout(x.x), x.decay = layout(x.decay);
                                      return scanned(x);
                                    }),
               want, 0, "layout");
  }
  ElementScan same = s;
  same.decay = s.decay.narrow(1, 0, 1).expand_as(s.decay);
  ElementScan copied = same;
  copied.decay = same.decay.contiguous();
  EXPECT_TRUE(scanned(same)[0].equal(scanned(copied)[0]));
}

TEST(ScanElementwise, BfloatIsFloatInside) {
  ElementScan s = random_scan(1, 200, 24);
  for (Tensor* t : {&s.x, &s.decay}) *t = t->to(at::kBFloat16);
  ElementScan floats = s;
  for (Tensor* t : {&floats.x, &floats.decay}) *t = t->to(at::kFloat);
  const Tensors got = scanned(s), want = scanned(floats);
  EXPECT_EQ(got[1].scalar_type(), at::kFloat);
  EXPECT_TRUE(got[1].equal(want[1]));
  EXPECT_TRUE(got[0].equal(want[0].to(at::kBFloat16)));
}

TEST(ScanElementwise, WritesIntoAStateThatIsGivenUp) {
  const at::NoGradGuard guard;
  ElementScan s = random_scan(2, 1, 16);
  const Tensor kept = s.state.clone();
  const ElementScanned apart = scan_elementwise(s);
  EXPECT_TRUE(s.state.equal(kept));
  s.reuse = true;
  const ElementScanned onto = scan_elementwise(s);
  EXPECT_EQ(onto.state.data_ptr(), s.state.data_ptr());
  EXPECT_TRUE(onto.state.equal(apart.state));
}

TEST(ScanElementwise, RefusesWhatDoesNotFit) {
  ElementScan s = random_scan(1, 4, 8);
  s.decay = at::rand({1, 4, 7});
  EXPECT_THROW(scan_elementwise(s), Error);
  s = random_scan(1, 4, 8);
  s.state = at::rand({2, 8});
  EXPECT_THROW(scan_elementwise(s), Error);
}

}  // namespace
}  // namespace kinfolk
