// The additive masks of the fused path of attend. Not a public header.
#pragma once
#include <vector>

#include "kinfolk/ops/attend_call.h"

namespace kinfolk {

struct Mask {
  Tensor values;  ///< [B or 1, H or 1, n, columns] in the type of the scores; undefined: everything is seen
  Tensor empty;   ///< bool [B or 1, 1, n], rows that see nothing; undefined: there are none
};

/// Builds the masks of a call's pieces; a piece that needs the mask of the one before gets that again.
class Masks {
 public:
  Masks(const AttendCall& call, at::ScalarType type) : call_(call), type_(type) {}
  const Mask& of(const Piece& piece);

 private:
  std::vector<int64_t> sliding_key(const Piece& piece) const;
  template <class T>
  void build(const Piece& piece);

  const AttendCall& call_;
  at::ScalarType type_;
  std::vector<int64_t> key_;
  Mask mask_, nothing_;
};

}  // namespace kinfolk
