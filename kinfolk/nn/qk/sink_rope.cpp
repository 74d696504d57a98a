#include "kinfolk/nn/qk/sink_rope.h"

namespace kinfolk {

SinkRope::SinkRope(const Options& options, const Context& context)
    : rotation_(options.rotation(context)), window_(options.window), last_(options.first + options.window - 1) {
  if (!context.heads.causal) {
    fail("[", context.path, "] expected a causal pattern with positions by place in a cache; found one that sees the ",
         "future");
  }
}

std::vector<QueryBand> SinkRope::queries(const QueryBand& band, const Tensor& at) {
  const Tensor p = turning_positions(at);
  QueryBand near = band, far = band;
  near.q = rotation_.turn(band.q, p);
  near.farthest = std::min(band.farthest, window_);
  far.q = rotation_.turn(band.q, p.clamp_max(static_cast<double>(last_)));
  far.nearest = std::max(band.nearest, window_);
  return {near, far};
}

std::vector<KeyBand> SinkRope::keys(const KeyBand& band, const Tensor& at) {
  const KeyBand turned{rotation_.turn(band.k, turning_positions(at))};
  return {turned, turned};
}

}  // namespace kinfolk
