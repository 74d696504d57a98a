#include "kinfolk/nn/qk/rope.h"

namespace kinfolk {

Rotation RotationOptions::rotation(const Context& context) const {
  const int64_t d = context.heads.width, turned = rotary == 0 ? d : rotary;
  if (turned % 2 != 0 || (d > 0 && turned > d)) {
    fail("[", context.path, ".rotary] expected an even number of dimensions, at most the head width ", d, "; found ",
         turned);
  }
  return {base, layout == "interleaved", rotary};
}

std::vector<QueryBand> Rope::queries(const QueryBand& band, const Tensor& at) {
  QueryBand out = band;
  out.q = rotation_.turn(band.q, turning_positions(at));
  return {out};
}

std::vector<KeyBand> Rope::keys(const KeyBand& band, const Tensor& at) {
  return {{rotation_.turn(band.k, turning_positions(at))}};
}

}  // namespace kinfolk
