#include "kinfolk/nn/memory/cache_append.h"

#include <atomic>

namespace kinfolk {
namespace {

constexpr int64_t kFree = -2;

/// Columns of memory behind those that t shows; 0 where it is not laid out [outer ..., columns, inner ...].
int64_t room(const Tensor& t, int64_t dim) {
  int64_t inner = 1;
  for (int64_t d = t.dim() - 1; d > dim; --d) {
    if (t.stride(d) != inner) return 0;
    inner *= t.size(d);
  }
  if (inner == 0 || t.stride(dim) != inner || t.stride(dim - 1) % inner != 0) return 0;
  const int64_t row = t.stride(dim - 1), columns = row / inner;
  int64_t all = row;
  for (int64_t d = dim - 1; d >= 0; --d) {
    if (t.stride(d) != all) return 0;
    all *= t.size(d);
  }
  if (static_cast<size_t>(all) * t.element_size() > t.storage().nbytes()) return 0;
  return columns - t.storage_offset() / inner - t.size(dim);
}

bool takes(const Joint& part) {
  const Tensor &kept = part.kept, &fresh = part.fresh;
  return kept.scalar_type() == fresh.scalar_type() && kept.is_inference() == at::InferenceMode::is_enabled() &&
         room(kept, part.dim) >= fresh.size(part.dim);
}

/// Whether the columns behind the kept positions are free; they are ours then.
bool claim(const Joint& positions) {
  const Tensor &kept = positions.kept, &fresh = positions.fresh;
  if (!takes(positions)) return false;
  std::atomic_ref<int64_t> first(kept.data_ptr<int64_t>()[kept.size(1)]);
  int64_t free = kFree;
  return first.compare_exchange_strong(free, *fresh.const_data_ptr<int64_t>());
}

/// t with `more` of the columns behind it.
Tensor widened(const Tensor& t, int64_t dim, int64_t more) {
  auto sizes = t.sizes().vec();
  sizes[static_cast<size_t>(dim)] += more;
  return t.as_strided(sizes, t.strides(), t.storage_offset());
}

/// Kept columns in memory of their own, with room for `more` and some.
Tensor moved(const Joint& part, int64_t more) {
  const int64_t count = part.kept.size(part.dim), all = count + more;
  auto sizes = part.fresh.sizes().vec();
  sizes[static_cast<size_t>(part.dim)] = columns_held(all);
  const Tensor memory = at::empty(sizes, part.fresh.options());
  memory.narrow(part.dim, 0, count).copy_(part.kept);
  return memory.narrow(part.dim, 0, count);
}

}  // namespace

std::vector<Tensor> append(const std::vector<Joint>& parts) {
  const Joint& positions = parts.at(0);
  const int64_t more = positions.fresh.size(1);
  std::vector<Tensor> out;
  // A layer that will be computed again runs without gradients, over kept columns that have one.
  const bool graph = at::GradMode::is_enabled() || std::any_of(parts.begin(), parts.end(), [](const Joint& part) {
                       return part.kept.requires_grad() || part.fresh.requires_grad();
                     });
  if (graph || !positions.fresh.is_cpu() || positions.fresh.numel() == 0) {
    for (const Joint& part : parts) {
      out.push_back(at::cat({part.kept.to(part.fresh.scalar_type()), part.fresh}, part.dim));
    }
    return out;
  }
  const bool stay = std::all_of(parts.begin(), parts.end(), takes) && claim(positions);
  for (const Joint& part : parts) {
    const Tensor kept = stay ? part.kept : moved(part, more);
    if (!stay && out.empty()) {
      auto free = widened(kept, 1, room(kept, 1)).narrow(1, kept.size(1), room(kept, 1));
      free.fill_(kFree);
    }
    const Tensor joined = widened(kept, part.dim, part.fresh.size(part.dim));
    joined.narrow(part.dim, kept.size(part.dim), part.fresh.size(part.dim)).copy_(part.fresh);
    out.push_back(joined);
  }
  return out;
}

}  // namespace kinfolk
