// Compression by pooling: no parameters.
#pragma once
#include "kinfolk/nn/memory/compression.h"

namespace kinfolk {

/// slot_n = mean of rows [c n, c n + c).
struct MeanPool : Compression {
  using Options = RateOptions;
  MeanPool(const Options& options, const Context&) : rate_(options.rate) {}
  Slots compress(const Leaving& leaving) const override;

 private:
  int64_t rate_;
};

/// slot_n = the largest of rows [c n, c n + c), by channel.
struct MaxPool : Compression {
  using Options = RateOptions;
  MaxPool(const Options& options, const Context&) : rate_(options.rate) {}
  Slots compress(const Leaving& leaving) const override;

 private:
  int64_t rate_;
};

}  // namespace kinfolk
