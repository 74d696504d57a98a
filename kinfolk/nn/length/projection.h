// A projection of the length: how the rows of a whole sequence become fewer slots, as a component.
#pragma once
#include "kinfolk/core/registry.h"
#include "kinfolk/nn/context.h"

namespace kinfolk {

struct LengthSlots {
  Tensor rows;        ///< [B, H, s, d]
  Tensor valid = {};  ///< bool [B, s], the slots that some row went into; undefined: all are to be met
};

/// [B, H, n, d] -> [B, H, s, d], s slots (Wang et al. 2020, Linformer, section 4).
struct LengthProjection : torch::nn::Module {
  /// rows [B, H, n, d]; seen bool [B, n]: rows that are there, the others are left out whatever they hold; undefined:
  /// all.
  virtual LengthSlots project(const Tensor& rows, const Tensor& seen) const = 0;
  virtual int64_t slots(int64_t length) const = 0;
  virtual int64_t longest() const { return 0; }  ///< rows that it can take; 0: any number
  /// It is a sum of rows, the same for all heads and channels, so that matrices on channels may as well come after it.
  virtual bool commutes() const = 0;
  virtual double flops(int64_t length, int64_t width) const = 0;  ///< of rows of all heads together
};

// Filled in nn/kin.cpp.
template <>
Registry<LengthProjection>& registry<LengthProjection>();

/// rows, zero where they are not seen.  [B, H, n, d]
Tensor seen_rows(const Tensor& rows, const Tensor& seen);

}  // namespace kinfolk
