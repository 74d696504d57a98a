// Compression by a convolution along the rows.
#pragma once
#include "kinfolk/nn/memory/compression.h"

namespace kinfolk {

/// slot_n = b + sum_t W_t row(c n + g t - p) with K taps, g rows apart, rows outside of those that leave together being
/// zero, and p = floor(((K - 1) g + 1 - c) / 2), so that the taps lie around the slot's own rows.
/// Parameters: weight [D, D, K] (out, in, tap), bias [D].
struct TapCompression : Compression {
  Slots compress(const Leaving& leaving) const override;
  double flops() const override { return 2.0 * static_cast<double>(weight.numel()); }
  Tensor weight, bias;

 protected:
  TapCompression(const Context& context, int64_t rate, int64_t taps, int64_t dilation);

 private:
  int64_t rate_, taps_, dilation_, before_;
};

/// K = c taps without gaps: the slots' own rows.
struct Conv : TapCompression {
  using Options = RateOptions;
  Conv(const Options& options, const Context& context) : TapCompression(context, options.rate, options.rate, 1) {}
};

/// Taps with gaps, which reach beyond the slot's own rows.
struct DilatedConv : TapCompression {
  struct Options : RateOptions {
    int64_t taps = 0, dilation = 2;
    template <class V>
    void fields(V&& visit) {
      RateOptions::fields(visit);
      visit("taps", taps, "taps K; 0: as many as the rate", at_least(0));
      visit("dilation", dilation, "rows from tap to tap g", at_least(1));
    }
  };
  DilatedConv(const Options& options, const Context& context)
      : TapCompression(context, options.rate, options.taps > 0 ? options.taps : options.rate, options.dilation) {}
};

}  // namespace kinfolk
