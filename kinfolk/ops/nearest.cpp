#include "kinfolk/ops/nearest.h"

#include "kinfolk/core/errors.h"
#include "kinfolk/kernels/nearest.h"

namespace kinfolk {
namespace {

constexpr int64_t kRows = 256, kColumns = 4096;  // of a block of scores
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
  const Tensor squares = key_squares.defined() ? key_squares.to(plain) : keyed.square().sum(-1);
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
      // |k|^2 - 2 q.k: |q|^2 is the same for all keys of a row.
      const Tensor scores = at::addmm(squares.narrow(0, column, columns), block, keyed.narrow(0, column, columns).t(),
                                      1, -2);  // [rows, columns]
      const float* values = scores.const_data_ptr<float>();
      for (int64_t r = 0; r < rows; ++r) {
        auto& full = filled[static_cast<size_t>(r)];
        full = kernels::keep_nearest(values + r * columns, columns, column, kept, best.data() + r * kept, full);
      }
    }
    for (int64_t r = 0; r < rows; ++r) {
      kernels::Candidate* mine = best.data() + r * kept;
      const int64_t full = filled[static_cast<size_t>(r)];
      kernels::refine_nearest(block.const_data_ptr<float>() + r * D, keyed.const_data_ptr<float>(), D, mine, full);
      int64_t* index = out.index.mutable_data_ptr<int64_t>() + (row + r) * k;
      float* distance = out.distance.mutable_data_ptr<float>() + (row + r) * k;
      for (int64_t i = 0; i < std::min(full, k); ++i) {
        index[i] = mine[i].index;
        distance[i] = mine[i].distance;
      }
    }
  }
  return out;
}

}  // namespace kinfolk
