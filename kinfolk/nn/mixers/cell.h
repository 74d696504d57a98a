// A cell: the step of a recurrent network, as a component.
#pragma once
#include "kinfolk/core/registry.h"
#include "kinfolk/nn/context.h"

namespace kinfolk {

/// h_t = step(read(x)_t, h_{t-1}), y_t = write(h_t). What depends on the inputs alone is computed for all tokens at
/// once.
struct Cell : torch::nn::Module {
  virtual int64_t hidden() const = 0;                                ///< width N of h
  virtual int64_t written() const { return hidden(); }               ///< width of y
  virtual double flops() const = 0;                                  ///< of one token
  virtual Tensor read(const Tensor& x) const = 0;                    ///< [B, L, D] -> [B, L, R]
  virtual Tensor step(const Tensor& in, const Tensor& h) const = 0;  ///< [B, R], [B, N] -> [B, N]
  virtual Tensor write(const Tensor& h) const { return h; }          ///< [B, L, N] -> [B, L, O]
};

// Filled in nn/kin.cpp.
template <>
Registry<Cell>& registry<Cell>();

struct HiddenOptions {
  int64_t hidden = 0;
  template <class V>
  void fields(V&& visit) {
    visit("hidden", hidden, "hidden width N; 0: the model width", at_least(0));
  }
};

/// h_t = f_A(h_{t-1}) + f_B(x_t), y_t = f_C(h_t), f(x) = tanh(W x + b): the form that all recurrent networks are cases
/// of. Parameters: w_a [N, N], b_a, w_b [N, D], b_b [N], w_c [D, N], b_c [D].
struct GeneralCell : Cell {
  using Options = HiddenOptions;
  GeneralCell(const Options& options, const Context& context);
  int64_t hidden() const override { return w_a.size(0); }
  int64_t written() const override { return w_c.size(0); }
  double flops() const override;
  Tensor read(const Tensor& x) const override;
  Tensor step(const Tensor& in, const Tensor& h) const override;
  Tensor write(const Tensor& h) const override;
  Tensor w_a, b_a, w_b, b_b, w_c, b_c;
};

/// h_t = tanh(W_ih x_t + b_ih + W_hh h_{t-1} + b_hh)   (Elman 1990). Parameters as torch names them.
struct TanhCell : Cell {
  using Options = HiddenOptions;
  TanhCell(const Options& options, const Context& context);
  int64_t hidden() const override { return weight_hh.size(1); }
  double flops() const override;
  Tensor read(const Tensor& x) const override;
  Tensor step(const Tensor& in, const Tensor& h) const override;
  Tensor weight_ih, weight_hh, bias_ih, bias_hh;
};

/// r, z = sigmoid of the first two row blocks of W_ih x + b_ih + W_hh h + b_hh; h_t = (1 - z) n + z h_{t-1} with
/// n = tanh(W_n x + b + r (U_n h + b')), or with the reset gate before the product, n = tanh(W_n x + b + U_n (r h) +
/// b') (Cho et al. 2014, arXiv 1406.1078). Parameters as torch names and orders them: reset, update, candidate.
struct GruCell : Cell {
  struct Options {
    int64_t hidden = 0;
    std::string reset = "after";
    template <class V>
    void fields(V&& visit) {
      visit("hidden", hidden, "hidden width N; 0: the model width", at_least(0));
      visit("reset", reset, "where the reset gate acts: after the product with h, or before it",
            one_of({"after", "before"}));
    }
  };
  GruCell(const Options& options, const Context& context);
  int64_t hidden() const override { return weight_hh.size(1); }
  double flops() const override;
  Tensor read(const Tensor& x) const override;
  Tensor step(const Tensor& in, const Tensor& h) const override;
  Tensor weight_ih, weight_hh, bias_ih, bias_hh;

 private:
  bool before_;
};

}  // namespace kinfolk
