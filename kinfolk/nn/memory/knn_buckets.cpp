#include "kinfolk/nn/memory/knn_buckets.h"

#include <algorithm>

namespace kinfolk {
namespace {
constexpr int64_t kSteps = 4, kSample = 32, kRows = 4096;
}  // namespace

Tensor nearest_bucket(const Tensor& keys, const Tensor& centre) {
  const Tensor half = centre.square().sum(-1).mul(0.5).unsqueeze(1), across = centre.transpose(1, 2);  // [G, d, K]
  std::vector<Tensor> parts;
  for (int64_t from = 0; from < keys.size(1); from += kRows) {
    const Tensor some = keys.narrow(1, from, std::min(kRows, keys.size(1) - from));
    parts.push_back((half - at::matmul(some, across)).argmin(-1).to(at::kInt));
  }
  return parts.empty() ? at::empty({keys.size(0), 0}, keys.options().dtype(at::kInt)) : at::cat(parts, 1);
}

Tensor fit_centres(const Tensor& keys, int64_t buckets, Tensor centre) {
  const int64_t groups = keys.size(0), count = keys.size(1), width = keys.size(2);
  const auto evenly = [&](int64_t wanted) {
    const Tensor places = at::arange(wanted, keys.options().dtype(at::kLong)).mul_(count).floor_divide_(wanted);
    return keys.index_select(1, places);
  };
  if (!centre.defined()) centre = evenly(buckets);
  const Tensor sample = evenly(std::min(count, kSample * buckets)).contiguous();
  const Tensor ones = at::ones({groups, sample.size(1)}, keys.options());
  for (int64_t step = 0; step < kSteps; ++step) {
    const Tensor code = nearest_bucket(sample, centre).to(at::kLong);
    const Tensor size = at::zeros({groups, buckets}, keys.options()).scatter_add_(1, code, ones);
    const Tensor sum = at::zeros_like(centre).scatter_add_(1, code.unsqueeze(-1).expand({-1, -1, width}), sample);
    centre = at::where(size.gt(0).unsqueeze(-1), sum / size.clamp_min(1).unsqueeze(-1), centre);
  }
  return centre;
}

bool fit_is_due(int64_t entered, int64_t fitted, int64_t slots, int64_t buckets) {
  const int64_t step = fitted == 0 ? 2 * buckets : std::min(fitted, std::max<int64_t>(slots / 2, 1));
  return entered >= fitted + step;
}

}  // namespace kinfolk
