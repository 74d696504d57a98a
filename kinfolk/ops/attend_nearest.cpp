#include "kinfolk/ops/attend_nearest.h"

#include <array>

#include "kinfolk/core/errors.h"
#include "kinfolk/core/parallel.h"
#include "kinfolk/kernels/largest.h"

namespace kinfolk {
namespace {

using kernels::Best;
using kernels::Scored;

constexpr int64_t kTask = kernels::kLargestRows;  ///< rows of a task: what one thread searches for at a time

/// The keys of one lane and group, and where their slots go round.
template <class T>
struct KeysOf {
  const T* keys;
  int64_t slots, width;
  std::array<SlotRange, 2> parts;  ///< of the slots that are met, each without going round
};

std::array<SlotRange, 2> unrolled(const SlotRange& seen, int64_t slots) {
  const int64_t until_end = std::min(seen.count, slots - seen.first);
  return {SlotRange{seen.first, until_end}, SlotRange{0, seen.count - until_end}};
}

void meet_list(const KeysOf<float>& all, const float* q, const int32_t* rows, int64_t count, const int32_t* slots,
               const SlotRange& part, int64_t n, Best<float>* best, std::vector<float>& scratch) {
  scratch.resize(static_cast<size_t>(kernels::largest_scratch(all.width)));
  kernels::search_largest({q, rows, count, all.keys, slots, part.first, part.count, all.width, n, best},
                          scratch.data());
}

void meet_list(const KeysOf<double>& all, const double* q, const int32_t* rows, int64_t count, const int32_t* slots,
               const SlotRange& part, int64_t n, Best<double>* best, std::vector<double>&) {
  for (int64_t r = 0; r < count; ++r) {
    const int64_t row = rows ? rows[r] : r;
    for (int64_t c = 0; c < part.count; ++c) {
      const int64_t slot = slots ? slots[c] : part.first + c;
      const double *a = q + row * all.width, *b = all.keys + slot * all.width;
      double product = 0;
      for (int64_t i = 0; i < all.width; ++i) product += a[i] * b[i];
      kernels::offer_largest(Scored<double>{product, slot}, n, best[row]);
    }
  }
}

/// The best keys of a task's rows.
template <class T>
struct Bests {
  std::vector<Scored<T>> keys;
  std::vector<Best<T>> rows;
  Bests(int64_t count, int64_t n)
      : keys(static_cast<size_t>(count * kernels::room_for(n))), rows(static_cast<size_t>(count)) {
    for (size_t r = 0; r < rows.size(); ++r) rows[r].keys = keys.data() + r * static_cast<size_t>(kernels::room_for(n));
  }
  /// Calls f(i, slot) for the n best of a row, best first.
  template <class F>
  void each(int64_t row, int64_t n, const F& f) {
    Best<T>& best = rows[static_cast<size_t>(row)];
    const int64_t found = std::min(n, best.filled);
    std::partial_sort(best.keys, best.keys + found, best.keys + best.filled,
                      [](const Scored<T>& a, const Scored<T>& b) { return kernels::better(a, b); });
    for (int64_t i = 0; i < found; ++i) f(i, best.keys[i].index);
  }
};

/// The slots that are met, bucket by bucket.
struct Sorted {
  std::vector<int32_t> slots, first;  ///< bucket b holds slots[first[b]] ..
  Sorted(const int32_t* code, const std::array<SlotRange, 2>& parts, int64_t buckets)
      : slots(static_cast<size_t>(parts[0].count + parts[1].count)), first(static_cast<size_t>(buckets) + 1) {
    for (const SlotRange& part : parts)
      for (int64_t c = 0; c < part.count; ++c) ++first[static_cast<size_t>(code[part.first + c]) + 1];
    for (size_t b = 1; b < first.size(); ++b) first[b] += first[b - 1];
    std::vector<int32_t> next(first.begin(), first.end() - 1);
    for (const SlotRange& part : parts)
      for (int64_t c = 0; c < part.count; ++c) {
        const int64_t slot = part.first + c;
        slots[static_cast<size_t>(next[static_cast<size_t>(code[slot])]++)] = static_cast<int32_t>(slot);
      }
  }
};

/// Rows q [rows, width] meet the keys of the buckets that they probe.
template <class T>
void meet_buckets(const KeysOf<T>& all, const T* q, int64_t rows, const Sorted& sorted, const T* centres,
                  int64_t buckets, int64_t probes, int64_t n, Best<T>* best, std::vector<T>& scratch) {
  Bests<T> chosen(rows, probes);
  const KeysOf<T> middle{centres, buckets, all.width, {}};
  meet_list(middle, q, nullptr, rows, nullptr, {0, buckets}, probes, chosen.rows.data(), scratch);
  std::vector<std::vector<int32_t>> askers(static_cast<size_t>(buckets));
  for (int64_t r = 0; r < rows; ++r) {
    chosen.each(r, probes,
                [&](int64_t, int64_t b) { askers[static_cast<size_t>(b)].push_back(static_cast<int32_t>(r)); });
  }
  for (size_t b = 0; b < askers.size(); ++b) {
    const int64_t count = sorted.first[b + 1] - sorted.first[b];
    if (askers[b].empty() || count == 0) continue;
    meet_list(all, q, askers[b].data(), static_cast<int64_t>(askers[b].size()), sorted.slots.data() + sorted.first[b],
              {0, count}, n, best, scratch);
  }
}

template <class T>
Tensor search(const Tensor& q, const Tensor& k, const std::vector<SlotRange>& seen, int64_t n, const Buckets* buckets) {
  const int64_t B = q.size(0), H = q.size(1), L = q.size(2), d = q.size(3), G = k.size(1), C = k.size(2);
  const int64_t rows = H / G * L, tasks = (rows + kTask - 1) / kTask;
  Tensor index = at::full({B, H, L, n}, -1, q.options().dtype(at::kLong));
  int64_t* out = index.mutable_data_ptr<int64_t>();
  const T *queries = q.const_data_ptr<T>(), *keys = k.const_data_ptr<T>();
  const int64_t K = buckets ? buckets->centre.size(2) : 0;
  const auto ready = [&](int64_t b) {
    return buckets && (buckets->ready.empty() || buckets->ready[static_cast<size_t>(b)]);
  };
  std::vector<std::unique_ptr<Sorted>> sorted(static_cast<size_t>(buckets ? B * G : 0));
  parallel_for(0, static_cast<int64_t>(sorted.size()), 1, [&](int64_t from, int64_t until) {
    for (int64_t i = from; i < until; ++i) {
      if (!ready(i / G)) continue;
      sorted[static_cast<size_t>(i)] = std::make_unique<Sorted>(buckets->code.const_data_ptr<int32_t>() + i * C,
                                                                unrolled(seen[static_cast<size_t>(i / G)], C), K);
    }
  });
  parallel_for(0, B * G * tasks, 1, [&](int64_t from, int64_t until) {
    std::vector<T> scratch;
    for (int64_t task = from; task < until; ++task) {
      const int64_t pair = task / tasks, first = task % tasks * kTask, count = std::min(kTask, rows - first);
      const KeysOf<T> all{keys + pair * C * d, C, d, unrolled(seen[static_cast<size_t>(pair / G)], C)};
      const T* own = queries + (pair * rows + first) * d;
      Bests<T> best(count, n);
      if (ready(pair / G)) {
        meet_buckets<T>(all, own, count, *sorted[static_cast<size_t>(pair)],
                        buckets->centre.const_data_ptr<T>() + pair * K * d, K, std::min(buckets->probes, K), n,
                        best.rows.data(), scratch);
      } else {
        for (const SlotRange& part : all.parts)
          if (part.count > 0) meet_list(all, own, nullptr, count, nullptr, part, n, best.rows.data(), scratch);
      }
      for (int64_t r = 0; r < count; ++r) {
        best.each(r, n, [&](int64_t i, int64_t slot) { out[(pair * rows + first + r) * n + i] = slot; });
      }
    }
  });
  return index;
}

}  // namespace

Tensor largest_products(const Tensor& q, const Tensor& k, const std::vector<SlotRange>& seen, int64_t n,
                        const Buckets* buckets) {
  if (q.dim() != 4 || k.dim() != 4 || q.size(0) != k.size(0) || q.size(3) != k.size(3) || k.size(1) == 0 ||
      q.size(1) % k.size(1) != 0 || static_cast<int64_t>(seen.size()) != q.size(0)) {
    fail("[attend_nearest] expected q [B, H, L, d], k [B, G, C, d], G a divisor of H, and slots of each lane; found ",
         q.sizes(), ", ", k.sizes(), " and ", seen.size());
  }
  if (n < 1) fail("[attend_nearest.neighbours] expected at least 1; found ", n);
  for (const SlotRange& lane : seen) {
    if (lane.count < 0 || lane.count > k.size(2) || lane.first < 0 || (lane.count > 0 && lane.first >= k.size(2))) {
      fail("[attend_nearest] expected at most ", k.size(2), " slots from one of them on; found ", lane.count, " from ",
           lane.first);
    }
  }
  const at::NoGradGuard guard;
  const bool single = q.scalar_type() != at::kDouble;
  const auto type = single ? at::kFloat : at::kDouble;
  const auto plain = [&](const Tensor& t) { return t.detach().to(at::kCPU, type).contiguous(); };
  Buckets held;
  if (buckets) held = {buckets->code.contiguous(), plain(buckets->centre), buckets->probes, buckets->ready};
  const auto run = single ? search<float> : search<double>;
  return run(plain(q), plain(k), seen, n, buckets ? &held : nullptr).to(q.device());
}

NearestRead attend_nearest(const Tensor& q, const Tensor& k, const Tensor& v, const std::vector<SlotRange>& seen,
                           int64_t n, const Buckets* buckets) {
  const int64_t B = q.size(0), H = q.size(1), L = q.size(2), G = k.size(1), C = k.size(2);
  NearestRead read;
  read.index = largest_products(q, k, seen, n, buckets);
  const Tensor met = read.index.ge(0);  // [B, H, L, n]
  // Rows of all lanes and groups under each other.
  const Tensor base = at::arange(B * G, read.index.options()).mul_(C).view({B, G, 1, 1, 1});
  const Tensor rows = (read.index.clamp_min(0).view({B, G, H / G, L, n}) + base).reshape(-1);  // of k and v flattened
  const auto taken = [&](const Tensor& t) {
    return t.reshape({B * G * C, t.size(3)}).index_select(0, rows).view({B, H, L, n, t.size(3)}).to(q.scalar_type());
  };
  const Tensor none = met.narrow(3, 0, 1).logical_not();
  const Tensor scores = at::matmul(taken(k), q.unsqueeze(-1)).squeeze(-1);  // [B, H, L, n]
  // A row without keys keeps finite scores, and then no weights.
  const Tensor weights =
      at::softmax(scores.masked_fill(met.logical_or(none).logical_not(), -INFINITY), -1).masked_fill(none, 0);
  read.out = at::matmul(weights.unsqueeze(-2), taken(v)).squeeze(-2);  // [B, H, L, e]
  return read;
}

}  // namespace kinfolk
