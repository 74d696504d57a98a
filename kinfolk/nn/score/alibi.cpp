#include "kinfolk/nn/score/alibi.h"

namespace kinfolk {

Tensor alibi_slopes(int64_t heads) {
  if (heads < 1) fail("[alibi.heads] expected at least 1; found ", heads);
  int64_t whole = 1;
  while (whole * 2 <= heads) whole *= 2;
  std::vector<double> slopes;
  for (int64_t h = 0; h < heads; ++h) {
    const double exponent = h < whole ? -8.0 * (h + 1) / whole : -4.0 * (2 * (h - whole) + 1) / whole;
    slopes.push_back(std::exp2(exponent));
  }
  return at::tensor(slopes, at::TensorOptions().dtype(at::kDouble));
}

Tensor Alibi::table(const Tensor& distance) const {
  return slopes_.to(distance.device()).unsqueeze(-1) * distance.abs().neg();  // [H, n]
}

}  // namespace kinfolk
