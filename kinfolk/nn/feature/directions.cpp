#include "kinfolk/nn/feature/directions.h"

namespace kinfolk {

Tensor random_directions(int64_t heads, int64_t features, int64_t width, bool orthogonal,
                         const at::Generator& generator) {
  const auto like = at::TensorOptions().dtype(at::kDouble);
  const auto draw = [&](int64_t rows) { return at::randn({heads, rows, width}, generator, like); };
  if (!orthogonal) return draw(features);
  std::vector<Tensor> blocks;
  for (int64_t from = 0; from < features; from += width) {
    const Tensor q = std::get<0>(at::linalg_qr(draw(width)));  // columns are orthonormal, uniform up to their signs
    const Tensor lengths = draw(width).square().sum(-1, true).sqrt();
    const Tensor signs = at::randint(0, 2, {heads, width, 1}, generator, like) * 2 - 1;
    blocks.push_back((q.transpose(-2, -1) * lengths * signs).narrow(1, 0, std::min(width, features - from)));
  }
  return at::cat(blocks, 1);  // [H, M, d]
}

}  // namespace kinfolk
