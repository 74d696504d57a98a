#include "kinfolk/nn/qk/longrope.h"

namespace kinfolk {
namespace {

Rotation divided(Rotation out, const std::vector<double>& by, double otherwise, const std::string& path) {
  if (!by.empty() && by.size() != out.frequency.size()) {
    fail("[", path, "] expected a factor for each of ", out.frequency.size(), " pairs; found ", by.size());
  }
  for (size_t t = 0; t < out.frequency.size(); ++t) out.frequency[t] /= by.empty() ? otherwise : by[t];
  return out;
}

}  // namespace

LongRope::LongRope(const Options& o, const Context& context) : trained_(trained_length(o.trained, context)) {
  Rotation plain = o.rotation(context);
  if (o.factor > 1 && trained_ > 1) {
    plain.gain = std::sqrt(1 + std::log(o.factor) / std::log(static_cast<double>(trained_)));
  }
  within_ = divided(plain, o.short_factor, 1, context.path + ".short_factor");
  beyond_ = divided(plain, o.long_factor, o.factor, context.path + ".long_factor");
}

std::vector<QueryBand> LongRope::queries(const QueryBand& band, const Tensor& at) {
  const Tensor own = shared_lanes(at), p = own.to(at::kDouble);
  QueryBand out = band;
  out.q = within_.turn_by(
      band.q, at::where(stage(own).eq(1).unsqueeze(-1), beyond_.angles(p), within_.angles(p)));  // [B, H, L, d]
  return {out};
}

std::vector<KeyBand> LongRope::keys_for(const KeyBand& band, const Tensor& at, int64_t stage) {
  return {{(stage == 0 ? within_ : beyond_).turn(band.k, turning_positions(at))}};
}

}  // namespace kinfolk
