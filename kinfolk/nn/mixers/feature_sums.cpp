#include "kinfolk/nn/mixers/feature_sums.h"

#include "kinfolk/core/errors.h"

namespace kinfolk {
namespace {

Tensor with_ones(const Tensor& v) { return at::cat({v, at::ones_like(v.narrow(-1, 0, 1))}, -1); }

Tensor divided(const Tensor& sums, int64_t width, double eps) {
  const Tensor o = sums.narrow(-1, 0, width), z = sums.narrow(-1, width, 1);
  return o / at::where(z < 0, z.clamp_max(-eps), z.clamp_min(eps));
}

Tensor over_all(const FeatureSums& s) {
  const int64_t later = std::max<int64_t>(s.v.size(2) - 1, 0);
  if (s.lanes.first.defined() && s.lanes.first.narrow(1, s.v.size(2) - later, later).any().item<bool>()) {
    fail("[causal] expected one document in each sequence that is read as a whole; found borders inside");
  }
  Tensor k = s.k;
  if (s.lanes.valid.defined()) k = k.masked_fill(s.lanes.valid.logical_not().unsqueeze(1).unsqueeze(-1), 0);
  const Tensor sums = at::matmul(k.transpose(-2, -1), with_ones(s.v));  // [B, H, F, d + 1]
  return divided(at::matmul(s.q, sums), s.v.size(3), s.eps);
}

}  // namespace

FeatureRead read_features(const FeatureSums& s, int64_t chunk) {
  if (!s.causal) return {over_all(s), {}, {}};
  DecayScan scan{s.q, s.k, s.positive ? s.v : with_ones(s.v), s.state, s.sum};
  scan.normalise = s.positive;
  scan.eps = s.eps;
  scan.lanes = s.lanes;
  scan.reuse = s.reuse;
  if (s.gate.defined()) scan.gate = {s.gate, {}, true};
  const DecayScanned done = chunk > 0 ? scan_decay(scan, chunk) : scan_decay_steps(scan);
  return {s.positive ? done.out : divided(done.out, s.v.size(3), s.eps), done.state, done.sum};
}

}  // namespace kinfolk
