#include "kinfolk/ops/nearest.h"

#include <ATen/Parallel.h>

#include <algorithm>

#include "kinfolk/core/errors.h"
#include "kinfolk/core/parallel.h"
#include "kinfolk/kernels/nearest.h"
#include "kinfolk/kernels/nearest_bytes.h"

namespace kinfolk {
namespace {

constexpr int64_t kRows = 256, kColumns = 2048;  // of a block of products
constexpr int64_t kGrain = 8;                    // rows of a thread at least
constexpr int64_t kSpare = 16;                   // candidates beyond k, against rounding in the products
constexpr int64_t kSample = 1024;                // keys whose mean is the centre

using kernels::Best;
using kernels::Candidate;
using kernels::Scored;

at::TensorOptions plain() { return at::TensorOptions().dtype(at::kFloat).device(at::kCPU); }

}  // namespace

struct NearestSoFar::Held {
  Tensor queries;  ///< float32 [M, D]
  int64_t k;
  Tensor centre;                    ///< float32 [D], of the first keys
  bool far = false;                 ///< the first keys lie closer together than to the origin
  std::vector<Scored<float>> keys;  ///< [M, room]
  std::vector<Best<float>> best;    ///< [M]: scores are -|q - key|^2
};

NearestSoFar::NearestSoFar(const Tensor& queries, int64_t k) : held_(std::make_unique<Held>()) {
  if (k < 1) fail("[nearest.k] expected at least 1; found ", k);
  if (queries.dim() != 2) fail("[nearest] expected queries [M, D]; found ", queries.sizes());
  held_->queries = queries.detach().to(plain()).contiguous();
  held_->k = k;
  const auto M = static_cast<size_t>(queries.size(0)), room = static_cast<size_t>(kernels::room_for(k));
  held_->keys.resize(M * room);
  held_->best.resize(M);
  for (size_t m = 0; m < M; ++m) held_->best[m].keys = held_->keys.data() + m * room;
}
NearestSoFar::~NearestSoFar() = default;

void NearestSoFar::meet(const Tensor& keys, int64_t first, const Tensor& key_squares) {
  const Tensor& q = held_->queries;
  if (keys.dim() != 2 || q.size(1) != keys.size(1)) {
    fail("[nearest] expected queries [M, D] and keys [N, D]; found ", q.sizes(), " and ", keys.sizes());
  }
  at::NoGradGuard guard;
  const Tensor keyed = keys.detach().to(plain()).contiguous();
  if (q.size(0) == 0 || keyed.size(0) == 0) return;
  if (!held_->centre.defined()) {
    const Tensor some = keyed.slice(0, 0, std::min(keyed.size(0), kSample));
    held_->centre = some.mean(0).nan_to_num_(0, 0, 0).contiguous();
    held_->far = held_->centre.square().sum().gt((some - held_->centre).square().sum(-1).median()).item<bool>();
  }
  if (kernels::bytes_serve_nearest(q.size(0), keyed.size(0), q.size(1))) return meet_bytes(keyed, first);
  const bool given = key_squares.defined() && !held_->far;
  // Less the centre, so that |q|^2 - 2 q.k + |k|^2, by which candidates are found, cancels little.
  const Tensor met = held_->far ? keyed - held_->centre : keyed;
  meet_products(keyed, met, (given ? key_squares.to(plain()) : met.square().sum(-1)).contiguous(), first);
}

void NearestSoFar::meet_bytes(const Tensor& keys, int64_t first) {
  const int64_t M = held_->queries.size(0), D = keys.size(1);
  // Tasks of as many rows as serve, less where threads would be idle.
  const int64_t share = (M + at::get_num_threads() - 1) / at::get_num_threads();
  const int64_t rows = std::clamp<int64_t>((share + 63) / 64 * 64, 64, kernels::kLargestRows);
  parallel_for(0, (M + rows - 1) / rows, 1, [&](int64_t from, int64_t until) {
    std::vector<float> scratch(static_cast<size_t>(kernels::nearest_scratch(D)));
    for (int64_t task = from; task < until; ++task) {
      const int64_t row = task * rows;
      kernels::search_nearest_bytes(
          {held_->queries.const_data_ptr<float>() + row * D, std::min(rows, M - row), keys.const_data_ptr<float>(),
           first, keys.size(0), D, held_->centre.const_data_ptr<float>(), held_->k, held_->best.data() + row},
          scratch.data());
    }
  });
}

void NearestSoFar::meet_products(const Tensor& keys, const Tensor& met, const Tensor& squares, int64_t first) {
  const int64_t M = held_->queries.size(0), N = keys.size(0), D = keys.size(1), k = held_->k;
  const int64_t kept = std::min(N, k + kSpare);
  std::vector<Candidate> best(static_cast<size_t>(std::min(M, kRows) * kept));
  std::vector<int64_t> filled;
  for (int64_t row = 0; row < M; row += kRows) {
    const int64_t rows = std::min(kRows, M - row);
    const Tensor own = held_->queries.narrow(0, row, rows), block = held_->far ? own - held_->centre : own;
    filled.assign(static_cast<size_t>(rows), 0);
    for (int64_t column = 0; column < N; column += kColumns) {
      const int64_t columns = std::min(kColumns, N - column);
      const Tensor products = at::mm(block, met.narrow(0, column, columns).t());  // [rows, columns]
      const float *values = products.const_data_ptr<float>(), *norms = squares.const_data_ptr<float>() + column;
      parallel_for(0, rows, kGrain, [&](int64_t from, int64_t until) {
        for (int64_t r = from; r < until; ++r) {
          auto& full = filled[static_cast<size_t>(r)];
          full =
              kernels::keep_nearest(values + r * columns, norms, columns, column, kept, best.data() + r * kept, full);
        }
      });
    }
    const float *q_rows = own.const_data_ptr<float>(), *all_keys = keys.const_data_ptr<float>();
    parallel_for(0, rows, kGrain, [&](int64_t from, int64_t until) {
      for (int64_t r = from; r < until; ++r) {
        Candidate* mine = best.data() + r * kept;
        const int64_t full = filled[static_cast<size_t>(r)];
        kernels::refine_nearest(q_rows + r * D, all_keys, D, mine, full);
        for (int64_t i = 0; i < std::min(full, k); ++i) {
          kernels::offer_largest(Scored<float>{-mine[i].distance, first + mine[i].index}, k,
                                 held_->best[static_cast<size_t>(row + r)]);
        }
      }
    });
  }
}

Nearest NearestSoFar::found() const {
  const int64_t M = held_->queries.size(0), k = held_->k;
  Nearest out{at::full({M, k}, -1, plain().dtype(at::kLong)),
              at::full({M, k}, std::numeric_limits<float>::infinity(), plain())};
  auto* index = out.index.mutable_data_ptr<int64_t>();
  auto* distance = out.distance.mutable_data_ptr<float>();
  parallel_for(0, M, kGrain, [&](int64_t from, int64_t until) {
    std::vector<Scored<float>> mine;
    for (int64_t m = from; m < until; ++m) {
      const Best<float>& best = held_->best[static_cast<size_t>(m)];
      mine.assign(best.keys, best.keys + best.filled);
      const int64_t full = std::min(k, best.filled);
      std::partial_sort(mine.begin(), mine.begin() + full, mine.end(),
                        [](const auto& a, const auto& b) { return kernels::better(a, b); });
      for (int64_t i = 0; i < full; ++i) {
        index[m * k + i] = mine[static_cast<size_t>(i)].index;
        distance[m * k + i] = -mine[static_cast<size_t>(i)].score;
      }
    }
  });
  return out;
}

Nearest nearest(const Tensor& queries, const Tensor& keys, int64_t k, const Tensor& key_squares) {
  NearestSoFar best(queries, k);
  best.meet(keys, 0, key_squares);
  return best.found();
}

}  // namespace kinfolk
