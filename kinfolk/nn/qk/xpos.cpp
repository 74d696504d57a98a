#include "kinfolk/nn/qk/xpos.h"

namespace kinfolk {
namespace {
const double kLargest = std::log(1e15);
}

Xpos::Xpos(const Options& options, const Context& context) : rotation_(options.rotation(context)) {
  if (!context.heads.causal) {
    fail("[", context.path, "] expected a causal pattern, since scores grow without bound towards the future; found ",
         "one that sees it");
  }
  const int64_t pairs = rotation_.pairs();
  for (int64_t t = 0; t < pairs; ++t) {
    const double zeta = (static_cast<double>(t) / static_cast<double>(pairs) + options.gamma) / (1 + options.gamma);
    slope_.push_back(std::log(zeta) / options.scale_base);
  }
  stretch_ = std::max<int64_t>(1, static_cast<int64_t>(kLargest / -slope_[0]));
}

Tensor Xpos::turned(const Tensor& x, const Tensor& p, const Tensor& centre, double sign) const {
  const Tensor slope = at::tensor(slope_, at::TensorOptions().dtype(at::kDouble)).to(p.device());
  // Keys beyond the stretch are out of the query's sight, those far before it have faded: neither may leave the range.
  const Tensor power = ((p - centre).to(at::kDouble) * sign).unsqueeze(-1) * slope;  // [B or 1, L, pairs]
  return rotation_.turn_by(x, rotation_.angles(p.to(at::kDouble)), power.clamp(-2 * kLargest, kLargest).exp());
}

Tensor Xpos::stage(const Tensor& at) const { return at.clamp_min(0).div(stretch_, "floor"); }

std::vector<QueryBand> Xpos::queries(const QueryBand& band, const Tensor& at) {
  const Tensor p = shared_lanes(at);
  QueryBand out = band;
  out.q = turned(band.q, p, stage(p) * stretch_, 1);
  return {out};
}

std::vector<KeyBand> Xpos::keys(const KeyBand& band, const Tensor& at) {
  const Tensor p = shared_lanes(at);
  return {{turned(band.k, p, stage(p) * stretch_, -1)}};
}

KeyBand Xpos::keys_again(const KeyBand& band, const Tensor& at, int64_t now) {
  const Tensor own = stage(shared_lanes(at));
  if (own.ge(now).all().item<bool>()) return band;
  const Tensor slope = at::tensor(slope_, at::TensorOptions().dtype(at::kDouble)).to(at.device());
  const Tensor power = ((now - own) * stretch_).clamp_min(0).to(at::kDouble).unsqueeze(-1) * slope;
  return {rotation_.sized(band.k, power.clamp_min(-2 * kLargest).exp())};
}

std::vector<KeyBand> Xpos::keys_for(const KeyBand& band, const Tensor& at, int64_t stage) {
  const Tensor p = shared_lanes(at);
  return {{turned(band.k, p, at::full_like(p, stage * stretch_), -1)}};
}

}  // namespace kinfolk
