#include "kinfolk/nn/qk/rotation.h"

#include "kinfolk/core/errors.h"

namespace kinfolk {
namespace {

/// Few tokens, of which torch operators would cost more than the work.
bool is_small(const Tensor& x, const Tensor& p) {
  return x.is_cpu() && p.is_cpu() && x.scalar_type() == at::kFloat && x.dim() == 4 && x.size(2) <= 16 &&
         x.stride(-1) == 1 && p.scalar_type() == at::kDouble && !(at::GradMode::is_enabled() && x.requires_grad());
}

}  // namespace

std::vector<double> rope_frequencies(double base, int64_t width) {
  std::vector<double> out;
  for (int64_t t = 0; t < width / 2; ++t)
    out.push_back(std::pow(base, -2.0 * static_cast<double>(t) / static_cast<double>(width)));
  return out;
}

Tensor Rotation::angles(const Tensor& p) const {
  const Tensor f = at::tensor(frequency, at::TensorOptions().dtype(at::kDouble)).to(p.device());
  return p.to(at::kDouble).unsqueeze(-1) * f;  // [B or 1, L, pairs]
}

Tensor Rotation::turn(const Tensor& x, const Tensor& p) const {
  const int64_t lanes = x.size(0), length = x.size(2), whole = x.size(3), half = pairs();
  if (!is_small(x, p) || 2 * half > whole || half == 0) return turn_by(x, angles(p));
  Tensor out = at::empty(x.sizes(), x.options());  // [B, H, L, d]
  std::vector<float> cosine(frequency.size()), sine(frequency.size());
  const auto position = p.accessor<double, 2>();
  const int64_t step = interleaved ? 2 : 1, apart = interleaved ? 1 : half;
  for (int64_t b = 0; b < lanes; ++b)
    for (int64_t l = 0; l < length; ++l) {
      const double at = position[p.size(0) == 1 ? 0 : b][p.size(1) == 1 ? 0 : l];
      for (size_t t = 0; t < frequency.size(); ++t) {
        cosine[t] = static_cast<float>(gain * std::cos(at * frequency[t]));
        sine[t] = static_cast<float>(gain * std::sin(at * frequency[t]));
      }
      for (int64_t h = 0; h < x.size(1); ++h) {
        const float* from = x.const_data_ptr<float>() + b * x.stride(0) + h * x.stride(1) + l * x.stride(2);
        float* to = out.data_ptr<float>() + ((b * x.size(1) + h) * length + l) * whole;
        for (int64_t t = 0; t < half; ++t) {
          const float one = from[t * step], two = from[t * step + apart];
          const auto c = cosine[static_cast<size_t>(t)], s = sine[static_cast<size_t>(t)];
          to[t * step] = one * c - two * s;
          to[t * step + apart] = two * c + one * s;
        }
        std::copy(from + 2 * half, from + whole, to + 2 * half);
      }
    }
  return out;
}

Tensor Rotation::turn_by(const Tensor& x, const Tensor& angle, const Tensor& size) const {
  const int64_t whole = x.size(-1), turned = 2 * pairs();
  if (turned > whole || turned == 0) {
    fail("[rope.rotary] expected an even number of dimensions, at most the head width ", whole, "; found ", turned);
  }
  const at::ScalarType exact = x.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  Tensor cosine = angle.cos(), sine = angle.sin();
  if (size.defined()) cosine = cosine * size, sine = sine * size;
  if (gain != 1) cosine = cosine * gain, sine = sine * gain;
  cosine = cosine.to(exact).unsqueeze(1);  // [B or 1, 1, L, pairs]
  sine = sine.to(exact).unsqueeze(1);
  const Tensor part = x.narrow(-1, 0, turned).to(exact);
  Tensor out;
  if (interleaved) {
    const Tensor two = part.unflatten(-1, {turned / 2, 2});
    const Tensor a = two.select(-1, 0), b = two.select(-1, 1);
    out = at::stack({a * cosine - b * sine, b * cosine + a * sine}, -1).flatten(-2);
  } else {
    const Tensor a = part.narrow(-1, 0, turned / 2), b = part.narrow(-1, turned / 2, turned / 2);
    out = at::cat({a * cosine - b * sine, b * cosine + a * sine}, -1);
  }
  out = out.to(x.scalar_type());
  return turned == whole ? out : at::cat({out, x.narrow(-1, turned, whole - turned)}, -1);
}

Tensor Rotation::sized(const Tensor& x, const Tensor& size) const {
  const int64_t whole = x.size(-1), turned = 2 * pairs();
  const at::ScalarType exact = x.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  const Tensor each = size.to(exact).unsqueeze(1);  // [B or 1, 1, L, pairs]
  const Tensor both = interleaved ? at::stack({each, each}, -1).flatten(-2) : at::cat({each, each}, -1);
  const Tensor out = (x.narrow(-1, 0, turned).to(exact) * both).to(x.scalar_type());
  return turned == whole ? out : at::cat({out, x.narrow(-1, turned, whole - turned)}, -1);
}

Tensor shared_lanes(const Tensor& at) {
  const bool same =
      at.size(0) <= 1 || at.stride(0) == 0 || (!at.is_meta() && at.narrow(0, 0, 1).expand_as(at).equal(at));
  return same ? at.narrow(0, 0, std::min<int64_t>(at.size(0), 1)) : at;
}

Tensor turning_positions(const Tensor& at) { return shared_lanes(at).to(at::kDouble); }

}  // namespace kinfolk
