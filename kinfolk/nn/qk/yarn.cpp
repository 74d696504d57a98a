#include "kinfolk/nn/qk/yarn.h"

namespace kinfolk {
namespace {

constexpr double kTurn = 2 * 3.14159265358979323846;

Rotation by_parts(const Yarn::Options& o, const Context& context) {
  if (o.beta <= o.alpha) fail("[", context.path, ".beta] expected more than alpha, ", o.alpha, "; found ", o.beta);
  const int64_t trained = trained_length(o.trained, context);
  Rotation out = o.rotation(context);
  const auto [first, last] = yarn_bounds(o.alpha, o.beta, o.base, out.pairs(), trained, o.ramp == "code");
  for (int64_t t = 0; t < out.pairs(); ++t) {
    double& f = out.frequency[t];
    const double turns = static_cast<double>(trained) * f / kTurn;
    const double g = o.ramp == "paper" ? (turns - o.alpha) / (o.beta - o.alpha)
                                       : 1 - (static_cast<double>(t) - first) / std::max(last - first, 1e-3);
    const double kept = std::clamp(g, 0.0, 1.0);
    f *= (1 - kept) / o.factor + kept;
  }
  if (o.temperature) out.gain = 0.1 * std::log(o.factor) + 1;
  return out;
}

}  // namespace

std::pair<double, double> yarn_bounds(double alpha, double beta, double base, int64_t pairs, int64_t trained,
                                      bool rounded) {
  const double count = static_cast<double>(pairs);
  // The pair with this many turns: trained base^(-t/pairs) / 2 pi = turns.
  const auto pair = [&](double turns) {
    return base == 1 ? 0 : count * std::log(static_cast<double>(trained) / (turns * kTurn)) / std::log(base);
  };
  double first = pair(beta), last = pair(alpha);
  if (rounded) first = std::floor(first), last = std::ceil(last);
  return {std::max(first, 0.0), std::min(last, 2 * count - 1)};
}

Yarn::Yarn(const Options& options, const Context& context) : Turn(by_parts(options, context)) {}

}  // namespace kinfolk
