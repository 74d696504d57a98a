// Compression by choice: the rows that received most attention are kept as they are.
#pragma once
#include "kinfolk/nn/memory/compression.h"

namespace kinfolk {

/// Of n rows the n / c with the greatest usage, in their order (of equal ones the older). Rows of the newest document
/// go before all others, since nothing looks at another document any more. No parameters.
/// Usage is the attention received while in memory (Compressive); all rows were there for as many queries, so the sum
/// orders them as the article's average does.
struct MostUsed : Compression {
  using Options = RateOptions;
  MostUsed(const Options& options, const Context&) : rate_(options.rate) {}
  Slots compress(const Leaving& leaving) const override;
  bool wants_usage() const override { return true; }

 private:
  int64_t rate_;
};

}  // namespace kinfolk
