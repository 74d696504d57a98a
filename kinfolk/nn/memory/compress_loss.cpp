#include "kinfolk/nn/memory/compress_loss.h"

#include "kinfolk/core/errors.h"
#include "kinfolk/ops/affine.h"

namespace kinfolk {

Tensor size_of_difference(const Tensor& d, const std::string& measure) {
  const Tensor flat = d.flatten(1);  // [M, ...]
  if (measure == "l2") return at::linalg_vector_norm(flat, 2, at::IntArrayRef{1});
  if (measure == "square") return flat.square().sum(1);
  if (measure == "mean_square") return flat.square().mean(1);
  fail("[measure] expected l2, square or mean_square; found ", measure);
}

Tensor read_by_content(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& hidden, double scale) {
  const int64_t groups = k.size(1);
  const Tensor grouped = (q * scale).unflatten(1, {groups, -1});          // [M, G, H / G, N, d]
  Tensor scores = at::matmul(grouped, k.unsqueeze(2).transpose(-1, -2));  // [M, G, H / G, N, P]
  if (!hidden.defined()) return at::matmul(scores.softmax(-1), v.unsqueeze(2)).flatten(1, 2);
  const Tensor mask = hidden.unsqueeze(2);
  scores = scores.masked_fill(mask, -std::numeric_limits<double>::infinity());
  scores = scores.masked_fill(mask.all(-1, true), 0);  // a row that sees nothing: any finite numbers
  return at::matmul(scores.softmax(-1).masked_fill(mask, 0), v.unsqueeze(2)).flatten(1, 2);
}

Decoder::Decoder(const Context& context, int64_t rate) {
  const int64_t width = context.size.width;
  weight = register_parameter("weight",
                              draw_parameter(context, {width, width, rate}, 1 / std::sqrt(static_cast<double>(width))));
  bias = register_parameter("bias", fill_parameter(context, {width}, 0));
}

Tensor Decoder::forward(const Tensor& slots) const {
  const int64_t width = weight.size(0), rate = weight.size(2);
  const Tensor matrix = weight.permute({2, 1, 0}).reshape({rate * width, width});
  return affine(slots, matrix, bias.repeat({rate})).unflatten(2, {rate, width}).flatten(1, 2);  // [M, P, D]
}

}  // namespace kinfolk
