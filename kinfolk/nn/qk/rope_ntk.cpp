#include "kinfolk/nn/qk/rope_ntk.h"

namespace kinfolk {
namespace {

Rotation with_longer_base(Rotation out, double s) {
  const double r = 2.0 * static_cast<double>(out.pairs());
  for (int64_t t = 1; t < out.pairs(); ++t) out.frequency[t] *= std::pow(s, -2.0 * static_cast<double>(t) / (r - 2));
  return out;
}

Rotation scaled(const RopeNtk::Options& options, const Context& context) {
  Rotation out = options.rotation(context);
  if (options.form == "plain") return with_longer_base(out, options.factor);
  const double r = 2.0 * static_cast<double>(out.pairs());
  for (int64_t t = 0; t < out.pairs(); ++t)
    out.frequency[t] *= std::pow(options.factor, -2.0 * static_cast<double>(t + 1) / r);
  return out;
}

}  // namespace

RopeNtk::RopeNtk(const Options& options, const Context& context) : Turn(scaled(options, context)) {}

RopeNtkDynamic::RopeNtkDynamic(const Options& options, const Context& context)
    : plain_(options.rotation(context)), factor_(options.factor), trained_(trained_length(options.trained, context)) {}

Tensor RopeNtkDynamic::stage(const Tensor& at) const {
  Tensor out = at::zeros_like(at);
  if (at.numel() == 0 || at.is_meta()) return out;
  const int64_t longest = at.max().item<int64_t>() + 1;
  for (int64_t reach = trained_; reach < longest; reach *= 2) {
    out = out + at.ge(reach);  // n = i + 1 > reach
    if (reach > INT64_MAX / 2) break;
  }
  return out;
}

Rotation RopeNtkDynamic::at_stage(int64_t stage) const {
  return with_longer_base(plain_, factor_ * std::exp2(static_cast<double>(stage)) - (factor_ - 1));
}

std::vector<QueryBand> RopeNtkDynamic::queries(const QueryBand& band, const Tensor& at) {
  const Tensor own = shared_lanes(at), p = own.to(at::kDouble), stages = stage(own);
  const int64_t last = own.numel() == 0 || own.is_meta() ? 0 : stages.max().item<int64_t>();
  Tensor angle = plain_.angles(p);
  for (int64_t m = 1; m <= last; ++m)
    angle = at::where(stages.eq(m).unsqueeze(-1), at_stage(m).angles(p), angle);  // [B or 1, L, pairs]
  QueryBand out = band;
  out.q = plain_.turn_by(band.q, angle);
  return {out};
}

std::vector<KeyBand> RopeNtkDynamic::keys_for(const KeyBand& band, const Tensor& at, int64_t stage) {
  return {{at_stage(stage).turn(band.k, turning_positions(at))}};
}

}  // namespace kinfolk
