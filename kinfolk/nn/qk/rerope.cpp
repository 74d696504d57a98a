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
  return {part(p, 1 - window_, window_), part(p * leak_ + bend, window_, INT64_MAX),
          part(p * leak_ - bend, INT64_MIN, 1 - window_)};
}

std::vector<KeyBand> RectifiedRope::keys(const KeyBand& band, const Tensor& at) {
  const Tensor p = turning_positions(at);
  const KeyBand far = leak_ == 0 ? band : KeyBand{rotation_.turn(band.k, p * leak_)};
  return {{rotation_.turn(band.k, p)}, far, far};
}

}  // namespace kinfolk
