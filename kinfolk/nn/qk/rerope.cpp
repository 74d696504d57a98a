#include "kinfolk/nn/qk/rerope.h"

namespace kinfolk {

std::vector<QueryBand> RectifiedRope::queries(const QueryBand& band, const Tensor& at) {
  const Tensor p = turning_positions(at);
  const double bend = static_cast<double>(window_) * (1 - leak_);
  const auto part = [&](const Tensor& turned_by, int64_t nearest, int64_t farthest) {
    QueryBand out = band;
    out.q = rotation_.turn(band.q, turned_by);
    out.nearest = std::max(band.nearest, nearest);
    out.farthest = std::min(band.farthest, farthest);
    return out;
  };
  const auto far = [&](double by) { return leak_ == 0 ? at::full({1, 1}, by, p.options()) : p * leak_ + by; };
  std::vector<QueryBand> out{part(p, back_ ? 1 - window_ : INT64_MIN, far_ ? window_ : INT64_MAX)};
  if (far_) out.push_back(part(far(bend), window_, INT64_MAX));
  if (back_) out.push_back(part(far(-bend), INT64_MIN, 1 - window_));
  return out;
}

std::vector<KeyBand> RectifiedRope::keys(const KeyBand& band, const Tensor& at) {
  const Tensor p = turning_positions(at);
  std::vector<KeyBand> out{{rotation_.turn(band.k, p)}};
  if (!far_ && !back_) return out;
  const KeyBand far = leak_ == 0 ? band : KeyBand{rotation_.turn(band.k, p * leak_)};
  out.resize(1 + (far_ ? 1 : 0) + (back_ ? 1 : 0), far);
  return out;
}

}  // namespace kinfolk
