// torch.ops.kinfolk.short_conv: the fields of ShortConv as arguments.
#include "kinfolk/ops/operator_library.h"
#include "kinfolk/ops/short_conv.h"

namespace kinfolk {
namespace {

std::vector<Tensor> run(const Arguments& a) {
  const ShortConved done = short_conv({a.tensor("x", 3),
                                       a.tensor("weight", 2),
                                       a.tensor("bias"),
                                       a.tensor("state"),
                                       a.flag("silu"),
                                       {a.tensor("valid"), a.tensor("first")}});
  return {done.out.contiguous(), done.state.contiguous()};
}

std::vector<Tensor> shapes(const Arguments& a) {
  const Tensor x = a.tensor("x", 3), weight = a.tensor("weight", 2);
  return {at::empty_symint(x.sym_sizes(), x.options()),
          at::empty_symint({x.sym_size(0), x.sym_size(2), weight.sym_size(1) - 1}, x.options().dtype(scan_type(x)))};
}

const auto registered = register_operator(
    {"short_conv",
     "Tensor x, Tensor weight, Tensor? bias=None, Tensor? state=None, bool silu=False, Tensor? valid=None, "
     "Tensor? first=None",
     "(Tensor out, Tensor state)", run, shapes});

}  // namespace
}  // namespace kinfolk
