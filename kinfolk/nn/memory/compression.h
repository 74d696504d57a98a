// A compression: how the rows that leave a memory become fewer rows, as a component.
#pragma once
#include "kinfolk/core/registry.h"
#include "kinfolk/nn/context.h"

namespace kinfolk {

/// Rows that leave a memory together, M times: oldest first, as many as a multiple of the rate c.
struct Leaving {
  Tensor rows;           ///< [M, P, D], P a multiple of c; zeros from `count` on
  Tensor count;          ///< int64 [M], how many there are, a multiple of c
  Tensor document = {};  ///< int64 [M, P], grows with the rows; undefined: one document
  Tensor usage = {};     ///< [M, P], what Compression::wants_usage asked for
};

/// What became of them: slot n of M is there while n < count / c.
struct Slots {
  Tensor rows;         ///< [M, P / c, D]
  Tensor at;           ///< int64 [M, P / c], the row in whose place the slot stands; grows with the slots
  Tensor first, last;  ///< int64 [M, P / c], the oldest and the newest row that the slot is made of
};

/// [M, P, D] -> [M, P / c, D], c the rate (Rae et al. 2019, section 3.1).
struct Compression : torch::nn::Module {
  virtual Slots compress(const Leaving& leaving) const = 0;
  virtual bool wants_usage() const { return false; }  ///< how much attention each row received
  virtual double flops() const { return 0; }          ///< of a slot
};

// Filled in nn/kin.cpp.
template <>
Registry<Compression>& registry<Compression>();

/// The options of every compression.
struct RateOptions {
  int64_t rate = 4;
  template <class V>
  void fields(V&& visit) {
    visit("rate", rate, "rows that become a slot c; the memory says it", at_least(1));
  }
};

/// The rows [c n, c n + c) of each slot n: places of slots that are made of their own rows alone.
Slots own_rows(const Tensor& rows, const Leaving& leaving, int64_t rate);

}  // namespace kinfolk
