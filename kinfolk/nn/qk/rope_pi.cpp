#include "kinfolk/nn/qk/rope_pi.h"

namespace kinfolk {
namespace {

Rotation interpolated(const RopePi::Options& options, const Context& context) {
  Rotation out = options.rotation(context);
  for (double& f : out.frequency) f /= options.factor;
  return out;
}

}  // namespace

RopePi::RopePi(const Options& options, const Context& context) : Turn(interpolated(options, context)) {}

}  // namespace kinfolk
