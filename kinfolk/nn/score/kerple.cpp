#include "kinfolk/nn/score/kerple.h"

#include "kinfolk/nn/score/alibi.h"

namespace kinfolk {
namespace {

void start_at(const Tensor& parameter, const Tensor& values) {
  const at::NoGradGuard guard;
  if (!parameter.is_meta()) Tensor(parameter).copy_(values);
}

}  // namespace

Kerple::Kerple(const Options& options, const Context& context) : power_(options.form == "power") {
  const int64_t heads = context.heads.count;
  a1 = register_parameter("a1", fill_parameter(context, {heads}, std::log(std::expm1(1.0))));  // softplus: 1
  a2 = register_parameter("a2", fill_parameter(context, {heads}, 0));                          // 2 sigmoid: 1
  start_at(power_ ? a1 : a2, alibi_slopes(heads).expm1().log());
}

Tensor Kerple::r1() const { return at::softplus(a1); }
Tensor Kerple::r2() const { return power_ ? 2 * a2.sigmoid() : at::softplus(a2); }

Tensor Kerple::table(const Tensor& distance) const {
  const Tensor one = r1().to(at::kDouble).unsqueeze(1), two = r2().to(at::kDouble).unsqueeze(1);
  const Tensor t = distance.abs().to(at::kDouble);
  if (!power_) return -one * (two * t).log1p();             // [H, n]
  const Tensor grown = (two * t.clamp_min(1).log()).exp();  // |i - j|^r2 where it is not 0
  return (-one * grown).masked_fill(distance.eq(0), 0);
}

}  // namespace kinfolk
