#include "kinfolk/nn/mixers/performer.h"

#include <cmath>

#include "kinfolk/core/errors.h"
#include "kinfolk/nn/feature/positive.h"
#include "kinfolk/nn/feature/rectified.h"
#include "kinfolk/nn/feature/sin_cos.h"
#include "kinfolk/nn/mixers/heads.h"

namespace kinfolk {

FeatureAttention::Shape Performer::shape(const Options& o, const Context& context) {
  if (o.stabiliser == "keys" && o.feature != "positive") {
    refuse("[", context.path, ".stabiliser] expected bound with feature ", o.feature, "; found keys");
  }
  const double d = static_cast<double>(context.size.width / head_count(o.heads, context));
  const int64_t usual = static_cast<int64_t>(std::ceil(std::max(1.0, d * std::log(d)) / 16)) * 16;
  Shape s;
  s.heads = o.heads;
  s.features = o.features > 0 ? o.features : usual;
  s.columns = o.feature == "sin_cos" ? 2 * s.features : s.features;
  s.causal = o.causal, s.positive = o.feature != "sin_cos", s.orthogonal = o.orthogonal;
  s.streams = o.stabiliser == "bound";
  s.eps = s.positive ? 1e-30 : o.eps;
  s.redraw = o.redraw, s.chunk = o.chunk, s.bias = o.bias;
  return s;
}

Performer::Performer(const Options& options, const Context& context)
    : FeatureAttention(shape(options, context), context), options_(options) {}

FeatureAttention::Features Performer::features(const Tensor& q, const Tensor& k, const Tensor&, const Pass& pass) {
  if (options_.feature == "relu") {
    return {rectified_features(q, directions(), options_.eps), rectified_features(k, directions(), options_.eps)};
  }
  if (options_.feature == "positive") {
    const PositiveFeatures map{directions(), options_.eps};
    const bool published = options_.stabiliser == "keys";
    return {map.queries(q, published), published ? map.keys_of_all(k, pass.valid) : map.keys(k)};
  }
  const double scale = std::pow(static_cast<double>(q.size(-1)), -0.25);
  const Tensor scaled_q = q * scale, scaled_k = k * scale;
  // exp(|q'|^2/2) is in both sums of the row and cancels.
  return {sin_cos_features(scaled_q, directions()),
          sin_cos_features(scaled_k, directions()) * at::exp(scaled_k.square().sum(-1, true) / 2)};
}

}  // namespace kinfolk
