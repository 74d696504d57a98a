// The length reduced window by window: means, maxima, a convolution.
#pragma once
#include "kinfolk/nn/length/projection.h"

namespace kinfolk {

/// Windows of `ratio` rows side by side, s = ceil(n / ratio) of them; the last one may be short. A window without any
/// row is no slot. (Wang et al. 2020, section 4, general projections)
class WindowLength : public LengthProjection {
 public:
  struct Options {
    int64_t ratio = 4;
    template <class V>
    void fields(V&& visit) {
      visit("ratio", ratio, "rows that become a slot", at_least(1));
    }
  };
  explicit WindowLength(const Options& options) : ratio_(options.ratio) {}
  LengthSlots project(const Tensor& rows, const Tensor& seen) const override;
  int64_t slots(int64_t length) const override { return (length + ratio_ - 1) / ratio_; }
  bool commutes() const override { return false; }
  double flops(int64_t length, int64_t width) const override {
    return static_cast<double>(length) * static_cast<double>(width);
  }

 protected:
  /// rows [B, H, s, ratio, d], zero where not seen; seen bool [B, 1, s, ratio, 1]. [B, H, s, d]
  virtual Tensor reduce(const Tensor& rows, const Tensor& seen) const = 0;

 private:
  int64_t ratio_;
};

/// slot = mean of the rows that are there.
struct MeanLength : WindowLength {
  MeanLength(const Options& options, const Context&) : WindowLength(options) {}
  bool commutes() const override { return true; }

 protected:
  Tensor reduce(const Tensor& rows, const Tensor& seen) const override;
};

/// slot = the largest of the rows that are there, by channel.
struct MaxLength : WindowLength {
  MaxLength(const Options& options, const Context&) : WindowLength(options) {}

 protected:
  Tensor reduce(const Tensor& rows, const Tensor& seen) const override;
};

/// slot = b + sum_t W_t row_(ratio s + t), the same for all heads; a row that is not there is zero. Parameters: weight
/// [d, d, ratio] (out, in, tap), bias [d], d the width of a head.
struct ConvLength : WindowLength {
  ConvLength(const Options& options, const Context& context);
  double flops(int64_t length, int64_t width) const override {
    return 2.0 * static_cast<double>(length) * static_cast<double>(width * weight.size(0));
  }
  Tensor weight, bias;

 protected:
  Tensor reduce(const Tensor& rows, const Tensor& seen) const override;
};

}  // namespace kinfolk
