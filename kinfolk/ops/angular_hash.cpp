#include "kinfolk/ops/angular_hash.h"

#include <ATen/autocast_mode.h>

#include "kinfolk/core/errors.h"
#include "kinfolk/core/parallel.h"

namespace kinfolk {
namespace {

constexpr int64_t kTokens = 512;  ///< of a block of products

/// The first of the largest of x [half] and -x.
template <class T>
int64_t largest(const T* x, int64_t half) {
  int64_t high = 0, low = 0;
  for (int64_t c = 1; c < half; ++c) {
    if (x[c] > x[high]) high = c;
    if (x[c] < x[low]) low = c;
  }
  return x[high] >= -x[low] ? high : half + low;
}

/// Columns that n buckets take of each factor.
struct Columns {
  int64_t first, second;
  Columns(int64_t buckets, int64_t m, int64_t factors) {
    const bool two = buckets > 2 * m;
    first = two ? m : buckets / 2, second = two ? buckets / (4 * m) : 0;
    if (buckets < 2 || 2 * first * std::max<int64_t>(1, 2 * second) != buckets || second > m || (two && factors < 2)) {
      fail("[angular_hash.buckets] expected an even number up to ", 2 * m,
           factors > 1 ? text(", or twice that an even number up to it") : "", "; found ", buckets);
    }
  }
};

template <class T>
void hash(const Tensor& x, const Tensor& rotations, const Sequences& sequences,
          const std::function<int64_t(int64_t)>& buckets, int64_t* out) {
  const int64_t H = x.size(1), L = x.size(2), R = rotations.size(1), m = rotations.size(4);
  parallel_for(0, x.size(0) * H, 1, [&](int64_t from, int64_t until) {
    const at::NoGradGuard guard;
    for (int64_t i = from; i < until; ++i) {
      const Tensor mine = x[i / H][i % H], turned = rotations[i % H];  // [L, d], [R, F, d, m]
      for (const auto& tokens : sequences[static_cast<size_t>(i / H)]) {
        const Columns columns(buckets(static_cast<int64_t>(tokens.size())), m, rotations.size(2));
        std::vector<Tensor> parts{turned.select(1, 0).narrow(2, 0, columns.first)};
        if (columns.second > 0) parts.push_back(turned.select(1, 1).narrow(2, 0, columns.second));
        const int64_t each = columns.first + columns.second;
        const Tensor all = at::cat(parts, 2).permute({1, 0, 2}).reshape({x.size(3), R * each});
        const bool together = tokens.back() - tokens.front() + 1 == static_cast<int32_t>(tokens.size());
        for (size_t t = 0; t < tokens.size(); t += kTokens) {
          const auto n = static_cast<int64_t>(std::min<size_t>(kTokens, tokens.size() - t));
          const Tensor rows =
              together ? mine.narrow(0, tokens[t], n)
                       : mine.index_select(0, at::from_blob(const_cast<int32_t*>(tokens.data() + t), {n}, at::kInt));
          const Tensor products = at::mm(rows, all);  // [n, R each]
          const T* p = products.const_data_ptr<T>();
          for (int64_t r = 0; r < R; ++r)
            for (int64_t k = 0; k < n; ++k) {
              const T* row = p + (k * R + r) * each;
              int64_t bucket = largest(row, columns.first);
              if (columns.second > 0) bucket += 2 * m * largest(row + columns.first, columns.second);
              out[(i * R + r) * L + tokens[t + static_cast<size_t>(k)]] = bucket;
            }
        }
      }
    }
  });
}

}  // namespace

Tensor angular_hash(const Tensor& x, const Tensor& rotations, const Sequences& sequences,
                    const std::function<int64_t(int64_t)>& buckets) {
  if (x.dim() != 4 || rotations.dim() != 5 || rotations.size(0) != x.size(1) || rotations.size(3) != x.size(3)) {
    fail("[angular_hash] expected x [B, H, L, d] and rotations [H, R, F, d, m]; found ", x.sizes(), " and ",
         rotations.sizes());
  }
  const c10::impl::ExcludeDispatchKeyGuard own_types(c10::autocast_dispatch_keyset);
  const auto type = x.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  const auto plain = [&](const Tensor& t) { return t.detach().to(at::kCPU, type).contiguous(); };
  Tensor out = at::zeros({x.size(0), x.size(1), rotations.size(1), x.size(2)}, at::kLong);
  const auto run = type == at::kDouble ? hash<double> : hash<float>;
  run(plain(x), plain(rotations), sequences, buckets, out.mutable_data_ptr<int64_t>());
  return out;
}

}  // namespace kinfolk
