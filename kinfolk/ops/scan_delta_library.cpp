// torch.ops.kinfolk.scan_delta: the fields of DeltaScan as arguments; chunk = 0 goes token by token.
#include "kinfolk/ops/operator_library.h"
#include "kinfolk/ops/scan_delta.h"

namespace kinfolk {
namespace {

std::vector<Tensor> run(const Arguments& a) {
  DeltaScan scan{a.tensor("q", 4),
                 a.tensor("k", 4),
                 a.tensor("v", 4),
                 a.tensor("beta"),
                 a.tensor("state"),
                 a.number("scale"),
                 {a.tensor("valid"), a.tensor("first")}};
  scan.log_decay = a.tensor("log_decay");
  const int64_t chunk = a.integer("chunk");
  const Scanned done = chunk > 0 ? scan_delta(scan, chunk) : scan_delta_steps(scan);
  return {done.out.contiguous(), done.state.contiguous()};
}

std::vector<Tensor> shapes(const Arguments& a) {
  const Tensor k = a.tensor("k", 4), v = a.tensor("v", 4);
  return {
      at::empty_symint(v.sym_sizes(), v.options()),
      at::empty_symint({k.sym_size(0), k.sym_size(1), k.sym_size(3), v.sym_size(3)}, v.options().dtype(scan_type(v)))};
}

const auto registered = register_operator(
    {"scan_delta",
     "Tensor q, Tensor k, Tensor v, Tensor beta, Tensor? log_decay=None, Tensor? state=None, float scale=1.0, "
     "Tensor? valid=None, Tensor? first=None, int chunk=64",
     "(Tensor out, Tensor state)", run, shapes});

}  // namespace
}  // namespace kinfolk
