#include "kinfolk/nn/mixers/cell.h"

namespace kinfolk {
namespace {

int64_t width_of(int64_t hidden, const Context& context) { return hidden > 0 ? hidden : context.size.width; }
double spread_of(int64_t inputs) { return 1 / std::sqrt(3.0 * static_cast<double>(inputs)); }
double products(std::initializer_list<Tensor> weights) {
  double sum = 0;
  for (const Tensor& w : weights) sum += 2 * static_cast<double>(w.numel());
  return sum;
}

}  // namespace

GeneralCell::GeneralCell(const Options& options, const Context& context) {
  const int64_t D = context.size.width, N = width_of(options.hidden, context);
  w_a = register_parameter("w_a", draw_parameter(context, {N, N}, spread_of(N)));
  b_a = register_parameter("b_a", fill_parameter(context, {N}, 0));
  w_b = register_parameter("w_b", draw_parameter(context, {N, D}, spread_of(D)));
  b_b = register_parameter("b_b", fill_parameter(context, {N}, 0));
  w_c = register_parameter("w_c", draw_parameter(context, {D, N}, spread_of(N)));
  b_c = register_parameter("b_c", fill_parameter(context, {D}, 0));
}
double GeneralCell::flops() const { return products({w_a, w_b, w_c}); }
Tensor GeneralCell::read(const Tensor& x) const { return at::tanh(at::linear(x, w_b, b_b)); }
Tensor GeneralCell::step(const Tensor& in, const Tensor& h) const { return at::tanh(at::linear(h, w_a, b_a)) + in; }
Tensor GeneralCell::write(const Tensor& h) const { return at::tanh(at::linear(h, w_c, b_c)); }

TanhCell::TanhCell(const Options& options, const Context& context) {
  const int64_t D = context.size.width, N = width_of(options.hidden, context);
  weight_ih = register_parameter("weight_ih", draw_parameter(context, {N, D}, spread_of(N)));
  weight_hh = register_parameter("weight_hh", draw_parameter(context, {N, N}, spread_of(N)));
  bias_ih = register_parameter("bias_ih", fill_parameter(context, {N}, 0));
  bias_hh = register_parameter("bias_hh", fill_parameter(context, {N}, 0));
}
double TanhCell::flops() const { return products({weight_ih, weight_hh}); }
Tensor TanhCell::read(const Tensor& x) const { return at::linear(x, weight_ih, bias_ih + bias_hh); }
Tensor TanhCell::step(const Tensor& in, const Tensor& h) const { return at::tanh(in + at::linear(h, weight_hh)); }

GruCell::GruCell(const Options& options, const Context& context) : before_(options.reset == "before") {
  const int64_t D = context.size.width, N = width_of(options.hidden, context);
  weight_ih = register_parameter("weight_ih", draw_parameter(context, {3 * N, D}, spread_of(N)));
  weight_hh = register_parameter("weight_hh", draw_parameter(context, {3 * N, N}, spread_of(N)));
  bias_ih = register_parameter("bias_ih", fill_parameter(context, {3 * N}, 0));
  bias_hh = register_parameter("bias_hh", fill_parameter(context, {3 * N}, 0));
}
double GruCell::flops() const { return products({weight_ih, weight_hh}); }
Tensor GruCell::read(const Tensor& x) const { return at::linear(x, weight_ih, bias_ih); }
Tensor GruCell::step(const Tensor& in, const Tensor& h) const {
  const int64_t N = hidden();
  const int64_t rows = before_ ? 2 * N : 3 * N;  // of the first product with h
  const Tensor product = at::linear(h, weight_hh.narrow(0, 0, rows), bias_hh.narrow(0, 0, rows));
  const Tensor gates = at::sigmoid(in.narrow(1, 0, 2 * N) + product.narrow(1, 0, 2 * N));
  const Tensor r = gates.narrow(1, 0, N), z = gates.narrow(1, N, N);
  const Tensor inner = before_ ? at::linear(r * h, weight_hh.narrow(0, 2 * N, N), bias_hh.narrow(0, 2 * N, N))
                               : r * product.narrow(1, 2 * N, N);
  const Tensor n = at::tanh(in.narrow(1, 2 * N, N) + inner);
  return n + z * (h - n);
}

}  // namespace kinfolk
