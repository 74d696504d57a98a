// torch.ops.kinfolk.scan_decay: the operator with flattened arguments, for Python and for saved graphs.
#include "kinfolk/ops/scan_decay.h"

namespace kinfolk {
namespace {

using Maybe = std::optional<Tensor>;

/// Empty tensors stand for what is not there: the state's sum without `normalise`.
std::tuple<Tensor, Tensor, Tensor> scan_decay_flat(const Tensor& q, const Tensor& k, const Tensor& v,
                                                   const Maybe& decay, const Maybe& value_decay, bool log,
                                                   const Maybe& state, const Maybe& sum, const Maybe& bonus,
                                                   bool before, double scale, bool normalise, double eps,
                                                   const Maybe& valid, const Maybe& first, int64_t chunk) {
  const auto of = [](const Maybe& t) { return t.value_or(Tensor()); };
  DecayScan scan{q, k, v, of(state), of(sum), scale, normalise, eps, {of(valid), of(first)}};
  scan.gate = {of(decay), of(value_decay), log};
  scan.before = before;
  scan.bonus = of(bonus);
  const DecayScanned done = chunk > 0 ? scan_decay(scan, chunk) : scan_decay_steps(scan);
  return {done.out, done.state, done.sum.defined() ? done.sum : at::empty({0}, done.state.options())};
}

TORCH_LIBRARY_FRAGMENT(kinfolk, library) {
  library.def(
      "scan_decay(Tensor q, Tensor k, Tensor v, Tensor? decay=None, Tensor? value_decay=None, bool log=True, "
      "Tensor? state=None, Tensor? sum=None, Tensor? bonus=None, bool before=False, float scale=1.0, "
      "bool normalise=False, float eps=1e-6, Tensor? valid=None, Tensor? first=None, int chunk=64) "
      "-> (Tensor out, Tensor state, Tensor sum)",
      scan_decay_flat);
}

}  // namespace
}  // namespace kinfolk
