#include "kinfolk/nn/qk/rope_mixed_base.h"

namespace kinfolk {
namespace {

Rotation mixed(const RopeMixedBase::Options& options, const Context& context) {
  Rotation out = options.rotation(context);
  const double a = std::log(options.factor) / std::pow(static_cast<double>(out.pairs()), options.b);
  for (int64_t t = 0; t < out.pairs(); ++t)
    out.frequency[t] *= std::exp(-a * std::pow(static_cast<double>(t + 1), options.b));
  return out;
}

}  // namespace

RopeMixedBase::RopeMixedBase(const Options& options, const Context& context) : Turn(mixed(options, context)) {}

}  // namespace kinfolk
