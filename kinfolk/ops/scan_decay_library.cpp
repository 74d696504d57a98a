// torch.ops.kinfolk.scan_decay: the fields of DecayScan as arguments. `sum` is empty without `normalise`; chunk = 0
// goes token by token.
#include "kinfolk/ops/operator_library.h"
#include "kinfolk/ops/scan_decay.h"

namespace kinfolk {
namespace {

std::vector<Tensor> run(const Arguments& a) {
  DecayScan scan{a.tensor("q", 4),    a.tensor("k", 4), a.tensor("v", 4),
                 a.tensor("state"),   a.tensor("sum"),  a.number("scale"),
                 a.flag("normalise"), a.number("eps"),  {a.tensor("valid"), a.tensor("first")}};
  scan.gate = {a.tensor("decay"), a.tensor("value_decay"), a.flag("log")};
  scan.before = a.flag("before");
  scan.bonus = a.tensor("bonus");
  const int64_t chunk = a.integer("chunk");
  const DecayScanned done = chunk > 0 ? scan_decay(scan, chunk) : scan_decay_steps(scan);
  return {done.out.contiguous(), done.state.contiguous(),
          done.sum.defined() ? done.sum.contiguous() : at::empty({0}, done.state.options())};
}

std::vector<Tensor> shapes(const Arguments& a) {
  const Tensor k = a.tensor("k", 4), v = a.tensor("v", 4);
  const auto B = k.sym_size(0), H = k.sym_size(1), K = k.sym_size(3);
  const auto options = v.options().dtype(scan_type(v));
  return {at::empty_symint(v.sym_sizes(), v.options()), at::empty_symint({B, H, K, v.sym_size(3)}, options),
          a.flag("normalise") ? at::empty_symint({B, H, K}, options) : at::empty({0}, options)};
}

const auto registered =
    register_operator({"scan_decay",
                       "Tensor q, Tensor k, Tensor v, Tensor? decay=None, Tensor? value_decay=None, bool log=True, "
                       "Tensor? state=None, Tensor? sum=None, Tensor? bonus=None, bool before=False, float scale=1.0, "
                       "bool normalise=False, float eps=1e-6, Tensor? valid=None, Tensor? first=None, int chunk=64",
                       "(Tensor out, Tensor state, Tensor sum)", run, shapes});

}  // namespace
}  // namespace kinfolk
