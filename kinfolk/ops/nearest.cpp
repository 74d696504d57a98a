#include "kinfolk/ops/nearest.h"

#include "kinfolk/core/errors.h"
#include "kinfolk/core/parallel.h"
#include "kinfolk/kernels/nearest.h"

namespace kinfolk {
namespace {

constexpr int64_t kRows = 256, kColumns = 2048;  // of a block of products
constexpr int64_t kGrain = 8;                    // rows of a thread at least
constexpr int64_t kSpare = 16;                   // candidates beyond k, against rounding in the products

}  // namespace

Nearest nearest(const Tensor& queries, const Tensor& keys, int64_t k, const Tensor& key_squares) {
  if (k < 1) fail("[nearest.k] expected at least 1; found ", k);
  if (queries.dim() != 2 || keys.dim() != 2 || queries.size(1) != keys.size(1)) {
    fail("[nearest] expected queries [M, D] and keys [N, D]; found ", queries.sizes(), " and ", keys.sizes());
  }
  at::NoGradGuard guard;
  const auto plain = at::TensorOptions().dtype(at::kFloat).device(at::kCPU);
  const Tensor q = queries.detach().to(plain).contiguous(), keyed = keys.detach().to(plain).contiguous();
  const Tensor squares = (key_squares.defined() ? key_squares.to(plain) : keyed.square().sum(-1)).contiguous();
  const int64_t M = q.size(0), N = keyed.size(0), D = q.size(1);
  const int64_t kept = std::min(N, k + kSpare);
  Nearest out{at::full({M, k}, -1, plain.dtype(at::kLong)),
              at::full({M, k}, std::numeric_limits<float>::infinity(), plain)};
  std::vector<kernels::Candidate> best(static_cast<size_t>(std::min(M, kRows) * kept));
  std::vector<int64_t> filled;
  for (int64_t row = 0; row < M && N > 0; row += kRows) {
    const int64_t rows = std::min(kRows, M - row);
    const Tensor block = q.narrow(0, row, rows);
    filled.assign(static_cast<size_t>(rows), 0);
    for (int64_t column = 0; column < N; column += kColumns) {
      const int64_t columns = std::min(kColumns, N - column);
      const Tensor products = at::mm(block, keyed.narrow(0, column, columns).t());  // [rows, columns]
      const float *values = products.const_data_ptr<float>(), *norms = squares.const_data_ptr<float>() + column;
      parallel_for(0, rows, kGrain, [&](int64_t from, int64_t until) {
        for (int64_t r = from; r < until; ++r) {
          auto& full = filled[static_cast<size_t>(r)];
          full =
              kernels::keep_nearest(values + r * columns, norms, columns, column, kept, best.data() + r * kept, full);
        }
      });
    }
    const float *q_rows = block.const_data_ptr<float>(), *all_keys = keyed.const_data_ptr<float>();
    int64_t* index = out.index.mutable_data_ptr<int64_t>() + row * k;
    float* distance = out.distance.mutable_data_ptr<float>() + row * k;
    parallel_for(0, rows, kGrain, [&](int64_t from, int64_t until) {
      for (int64_t r = from; r < until; ++r) {
        kernels::Candidate* mine = best.data() + r * kept;
        const int64_t full = filled[static_cast<size_t>(r)];
        kernels::refine_nearest(q_rows + r * D, all_keys, D, mine, full);
        for (int64_t i = 0; i < std::min(full, k); ++i) {
          index[r * k + i] = mine[i].index;
          distance[r * k + i] = mine[i].distance;
        }
      }
    });
  }
  return out;
}

}  // namespace kinfolk
