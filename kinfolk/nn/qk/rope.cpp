#include "kinfolk/nn/qk/rope.h"

namespace kinfolk {

Rotation RotationOptions::rotation(const Context& context) const {
  const int64_t d = context.heads.width, turned = rotary == 0 ? d : rotary;
  if (turned % 2 != 0 || turned > d || turned < 2) {
    fail("[", context.path, ".rotary] expected an even number of dimensions, at most the head width ", d, "; found ",
         turned);
  }
  return {rope_frequencies(base, turned), layout == "interleaved"};
}

int64_t trained_length(int64_t option, const Context& context) { return option == 0 ? context.size.context : option; }

std::vector<QueryBand> Turn::queries(const QueryBand& band, const Tensor& at) {
  QueryBand out = band;
  out.q = rotation.turn(band.q, turning_positions(at));
  return {out};
}

std::vector<KeyBand> Turn::keys(const KeyBand& band, const Tensor& at) {
  return {{rotation.turn(band.k, turning_positions(at))}};
}

}  // namespace kinfolk
