#include "kinfolk/nn/memory/compress_conv.h"

#include "kinfolk/ops/affine.h"

namespace kinfolk {

TapCompression::TapCompression(const Context& context, int64_t rate, int64_t taps, int64_t dilation)
    : rate_(rate), taps_(taps), dilation_(dilation) {
  const int64_t spread = (taps - 1) * dilation + 1 - rate;
  before_ = spread >= 0 ? spread / 2 : -((1 - spread) / 2);
  const int64_t width = context.size.width;
  const double deviation = 1 / std::sqrt(static_cast<double>(width * taps));
  weight = register_parameter("weight", draw_parameter(context, {width, width, taps}, deviation));
  bias = register_parameter("bias", fill_parameter(context, {width}, 0));
}

Slots TapCompression::compress(const Leaving& leaving) const {
  const Tensor& rows = leaving.rows;
  const int64_t many = rows.size(0), length = rows.size(1), width = rows.size(2), slots = length / rate_;
  // Every tap reads the rows start, start + c, ...; what no tap reads is cut off, what is not there is zero.
  const int64_t end = (slots - 1) * rate_ - before_ + (taps_ - 1) * dilation_ + 1;
  const Tensor padded = at::constant_pad_nd(rows, {0, 0, before_, end - length});
  std::vector<Tensor> read;
  for (int64_t tap = 0; tap < taps_; ++tap) {
    const int64_t start = tap * dilation_;
    read.push_back(padded.slice(1, start, start + (slots - 1) * rate_ + 1, rate_));
  }
  const Tensor matrix = weight.transpose(1, 2).reshape({width, taps_ * width});
  Slots out = own_rows(affine(at::cat(read, 2), matrix, bias), leaving, rate_);  // [M, P / c, D]

  const Tensor own = at::arange(slots, leaving.count.options()) * rate_ - before_;
  const Tensor newest = leaving.count.unsqueeze(1) - 1;
  out.first = own.clamp_min(0).expand({many, slots});
  out.last = at::minimum(own + (taps_ - 1) * dilation_, newest).clamp_min(0);
  return out;
}

}  // namespace kinfolk
