// torch.ops.kinfolk.scan_selective: the fields of SelectiveScan as arguments; chunk = 0 goes token by token.
#include "kinfolk/ops/operator_library.h"
#include "kinfolk/ops/scan_selective.h"

namespace kinfolk {
namespace {

std::vector<Tensor> run(const Arguments& a) {
  SelectiveScan scan{a.tensor("x", 3),  a.tensor("delta", 3), a.tensor("a", 2), a.tensor("b", 3),
                     a.tensor("c", 3),  a.tensor("skip"),     a.tensor("z"),    a.tensor("bias"),
                     a.tensor("state"), a.flag("softplus"),   a.flag("zoh"),    {a.tensor("valid"), a.tensor("first")}};
  const int64_t chunk = a.integer("chunk");
  const SelectiveScanned done = chunk > 0 ? scan_selective(scan, chunk) : scan_selective_steps(scan);
  return {done.out.contiguous(), done.state.contiguous()};
}

std::vector<Tensor> shapes(const Arguments& a) {
  const Tensor x = a.tensor("x", 3), decays = a.tensor("a", 2);
  return {at::empty_symint(x.sym_sizes(), x.options()),
          at::empty_symint({x.sym_size(0), x.sym_size(2), decays.sym_size(1)}, x.options().dtype(scan_type(x)))};
}

const auto registered = register_operator(
    {"scan_selective",
     "Tensor x, Tensor delta, Tensor a, Tensor b, Tensor c, Tensor? skip=None, Tensor? z=None, Tensor? bias=None, "
     "Tensor? state=None, bool softplus=True, bool zoh=False, Tensor? valid=None, Tensor? first=None, int chunk=64",
     "(Tensor out, Tensor state)", run, shapes});

}  // namespace
}  // namespace kinfolk
