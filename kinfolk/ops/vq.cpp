#include "kinfolk/ops/vq.h"

#include <ATen/autocast_mode.h>

#include "kinfolk/core/errors.h"
#include "kinfolk/pattern/pattern.h"

namespace kinfolk {

Tensor nearest_code(const Tensor& k, const Tensor& codebook) {
  if (k.dim() != 4 || codebook.dim() != 3 || k.size(1) != codebook.size(0) || k.size(3) != codebook.size(2)) {
    fail("[vq] expected k [B, H, L, d] and a codebook [H, S, d]; found ", k.sizes(), " and ", codebook.sizes());
  }
  const at::NoGradGuard guard;
  const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
  const Tensor words = codebook.detach(), keys = k.detach().to(words.scalar_type());
  const Tensor half = words.square().sum(-1).mul(0.5).unsqueeze(1);    // [H, 1, S]
  return (half - at::matmul(keys, words.transpose(1, 2))).argmin(-1);  // [B, H, L]
}

Tensor codewords(const Tensor& codebook, const Tensor& code) {
  const int64_t H = codebook.size(0), S = codebook.size(1);
  const Tensor rows = code + at::arange(H, code.options()).mul_(S).view({1, H, 1});
  return codebook.reshape({H * S, codebook.size(2)})
      .index_select(0, rows.reshape(-1))
      .view({code.size(0), H, code.size(2), codebook.size(2)});
}

Tensor straight_through(const Tensor& k, const Tensor& quantised) {
  if (!k.requires_grad()) return quantised.detach();
  const Tensor still = k.detach();
  return quantised.detach() + (k - still);  // the difference is 0 exactly
}

CodeSums add_codes(const CodeSums& sums, const Tensor& keep, const Tensor& code, const Tensor& v, const Tensor& taken) {
  const int64_t S = sums.count.size(2);
  const Tensor some = taken.to(v.scalar_type()).unsqueeze(1);  // [B, 1, n]
  const Tensor share = some.expand({v.size(0), v.size(1), v.size(2)});
  const Tensor fresh = at::zeros(sums.count.sizes(), v.options()).scatter_add(2, code, share);  // [B, H, S]
  const Tensor places = code.unsqueeze(-1).expand(v.sizes());
  Tensor shape = at::zeros({v.size(0), v.size(1), S, v.size(3)}, v.options());
  const Tensor sum = shape.scatter_add(2, places, v * some.unsqueeze(-1));  // [B, H, S, e]
  const Tensor kept = keep.view({-1, 1, 1});
  CodeSums out;
  out.count = sums.count * kept + fresh.to(at::kLong);
  const Tensor mean = sums.mean * kept.unsqueeze(-1).to(v.scalar_type());
  const Tensor total = out.count.clamp_min(1).to(v.scalar_type()).unsqueeze(-1);
  out.mean = mean + (sum - fresh.unsqueeze(-1) * mean) / total;
  return out;
}

Read read_codes(const Tensor& q, const Tensor& codebook, const CodeSums& sums, const Tensor& seen) {
  static const auto everything = parse_pattern("full");
  const int64_t B = q.size(0), H = q.size(1), S = codebook.size(1);
  // A codeword is a key, how often it stands is one more entry of it, which queries meet with 1. Below, e^-100 is none.
  const Tensor often = sums.count.to(at::kDouble).log().clamp_min(-100).to(q.scalar_type()).unsqueeze(-1);
  const Tensor words = codebook.to(q.scalar_type()).unsqueeze(0).expand({B, H, S, codebook.size(2)});
  const Tensor any = sums.count.select(1, 0).sum(-1, true).gt(0);  // [B, 1], of all heads alike
  const auto whole = sums.count.options();
  Keys keys;
  keys.k = at::cat({words, often}, -1);  // [B, H, S, d + 1]
  keys.v = sums.mean.to(q.scalar_type());
  keys.at = at::where(any, at::zeros({1, S}, whole), at::full({1, S}, -1, whole));
  const Tensor at = at::where(seen, at::zeros({1, 1}, whole), at::full({1, 1}, -1, whole));  // [B, n]
  const Tensor asking = at::cat({q, at::ones({1, 1, 1, 1}, q.options()).expand({B, H, q.size(2), 1})}, -1);
  AttendPlan plan;
  plan.pattern = everything;
  return attend({QueryBand{.q = asking, .scale = 1}}, asking, at, {}, {keys}, {{KeyBand{keys.k}}}, plan);
}

CodeStatistics code_statistics(const Tensor& k, const Tensor& code, int64_t codes, const Tensor& valid) {
  const at::NoGradGuard guard;
  const int64_t H = k.size(1), d = k.size(3);
  const Tensor keys = k.detach();
  const Tensor rows = (code + at::arange(H, code.options()).mul_(codes).view({1, H, 1})).reshape(-1);
  Tensor share = at::ones(code.sizes(), keys.options());
  if (valid.defined()) share = share * valid.to(keys.scalar_type()).unsqueeze(1);
  const Tensor weighed = valid.defined() ? keys * share.unsqueeze(-1) : keys;
  CodeStatistics out;
  out.count = at::zeros({H * codes}, keys.options()).index_add_(0, rows, share.reshape(-1)).view({H, codes});
  out.sum = at::zeros({H * codes, d}, keys.options()).index_add_(0, rows, weighed.reshape({-1, d})).view({H, codes, d});
  return out;
}

void move_codes(Tensor& count, Tensor& sum, const CodeStatistics& of_call, double decay) {
  const at::NoGradGuard guard;
  count.mul_(decay).add_(of_call.count, 1 - decay);
  sum.mul_(decay).add_(of_call.sum, 1 - decay);
}

Tensor codebook_of(const Tensor& count, const Tensor& sum, double least) {
  return sum / count.clamp_min(least).unsqueeze(-1);
}

}  // namespace kinfolk
