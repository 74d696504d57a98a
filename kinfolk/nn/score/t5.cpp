#include "kinfolk/nn/score/t5.h"

namespace kinfolk {

Tensor t5_buckets(const Tensor& distance, int64_t buckets, int64_t farthest, bool both_ways) {
  const int64_t half = both_ways ? buckets / 2 : buckets, exact = half / 2;
  const Tensor ahead = distance.lt(0);
  const Tensor n = both_ways ? distance.abs() : distance.clamp_min(0);
  // exact + floor(ln(n / exact) / ln(farthest / exact) (half - exact)); the addend outweighs rounding at whole results.
  const double ratio = std::log(static_cast<double>(farthest) / static_cast<double>(exact));
  const Tensor far = n.clamp_min(exact).to(at::kDouble).div(static_cast<double>(exact)).log() *
                     (static_cast<double>(half - exact) / ratio);
  const Tensor large = (far + 1e-9).floor().to(at::kLong).add(exact).clamp_max(half - 1);
  const Tensor bucket = at::where(n.lt(exact), n, large);
  return both_ways ? bucket + ahead.to(at::kLong) * half : bucket;
}

T5::T5(const Options& options, const Context& context) : options_(options), both_ways_(!context.heads.causal) {
  const int64_t half = both_ways_ ? options.buckets / 2 : options.buckets;
  if (options.farthest <= half / 2) {
    fail("[", context.path, ".farthest] expected more than the ", half / 2, " distances with a bucket each; found ",
         options.farthest);
  }
  biases = register_parameter("table", draw_parameter(context, {options.buckets, context.heads.count}, 0.02));
}

Tensor T5::table(const Tensor& distance) const {
  const Tensor bucket = t5_buckets(distance, options_.buckets, options_.farthest, both_ways_);
  return biases.index_select(0, bucket).t();  // [H, n]
}

}  // namespace kinfolk
