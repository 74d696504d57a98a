#include "kinfolk/nn/retrieve/search.h"

#include <algorithm>

#include "kinfolk/core/errors.h"
#include "kinfolk/core/parallel.h"
#include "kinfolk/kernels/nearest.h"

namespace kinfolk {
namespace {

constexpr int64_t kBlock = 65536;  // keys that are searched at once
constexpr int64_t kGrain = 8;      // queries of a thread at least

Nearest nothing(int64_t queries, int64_t k) {
  return {at::full({queries, k}, -1, at::kLong),
          at::full({queries, k}, std::numeric_limits<float>::infinity(), at::kFloat)};
}

void check_queries(const Datastore& store, const Tensor& queries, int64_t k) {
  if (k < 1) fail("[datastore.k] expected at least 1; found ", k);
  if (queries.dim() != 2 || queries.size(1) != store.width()) {
    fail("[datastore] expected queries [M, ", store.width(), "]; found ", queries.sizes());
  }
}

class ExactSearch : public Search {
 public:
  explicit ExactSearch(std::shared_ptr<const Datastore> store) : store_(std::move(store)) {}
  std::string words() const override { return text("exact search in ", store_->size(), " entries"); }

  Nearest nearest(const Tensor& queries, int64_t k) const override {
    check_queries(*store_, queries, k);
    NearestSoFar best(queries, k);
    for (int64_t first = 0; first < store_->size();) {
      const auto block = store_->block(first, kBlock);
      best.meet(block.keys, first, block.squares);
      first += block.keys.size(0);
    }
    return best.found();
  }

 private:
  std::shared_ptr<const Datastore> store_;
};

}  // namespace

std::unique_ptr<Search> exact_search(std::shared_ptr<const Datastore> store) {
  return std::make_unique<ExactSearch>(std::move(store));
}

std::vector<std::string> search_kinds() {
#ifdef KINFOLK_FAISS
  return {"exact", "graph", "ivf_pq"};
#else
  return {"exact", "graph"};
#endif
}

#ifndef KINFOLK_FAISS
namespace {
[[noreturn]] void without_faiss() {
  refuse("[datastore.search] expected exact or graph; found ivf_pq, which needs a program built with FAISS (CMake: ",
         "-DKINFOLK_FAISS=ON)");
}
}  // namespace
void build_ivf_pq(std::shared_ptr<const Datastore>, const IvfPqOptions&, const std::function<void(double)>&) {
  without_faiss();
}
std::unique_ptr<Search> ivf_pq_search(std::shared_ptr<const Datastore>, int64_t) { without_faiss(); }
#endif

std::unique_ptr<Search> open_search(const std::string& kind, std::shared_ptr<const Datastore> store, int64_t effort) {
  if (kind == "exact") return exact_search(std::move(store));
  if (kind == "graph") return effort > 0 ? graph_search(std::move(store), effort) : graph_search(std::move(store));
  if (kind == "ivf_pq") return effort > 0 ? ivf_pq_search(std::move(store), effort) : ivf_pq_search(std::move(store));
  refuse("[datastore.search] expected exact, graph or ivf_pq; found ", kind);
}

Nearest refine(const Datastore& store, const Tensor& queries, const Tensor& candidates, int64_t k) {
  check_queries(store, queries, k);
  const int64_t M = candidates.size(0), n = candidates.size(1), width = store.width();
  Nearest out = nothing(M, k);
  const Tensor q = queries.detach().to(at::kCPU, at::kFloat).contiguous(), which = candidates.contiguous();
  const auto* rows = q.const_data_ptr<float>();
  const auto* entry = which.const_data_ptr<int64_t>();
  auto* index = out.index.mutable_data_ptr<int64_t>();
  auto* distance = out.distance.mutable_data_ptr<float>();
  parallel_for(0, M, kGrain, [&](int64_t from, int64_t until) {
    std::vector<kernels::Candidate> best;
    std::vector<int64_t> mine;
    for (int64_t m = from; m < until; ++m) {
      best.clear(), mine.clear();
      for (int64_t i = 0; i < n; ++i) {
        if (entry[m * n + i] < 0) continue;
        best.push_back({0, static_cast<int64_t>(mine.size())});
        mine.push_back(entry[m * n + i]);
      }
      if (mine.empty()) continue;
      const Tensor keys = store.keys(at::tensor(mine));  // [n, D] float32
      kernels::refine_nearest(rows + m * width, keys.const_data_ptr<float>(), width, best.data(),
                              static_cast<int64_t>(best.size()));
      for (auto& one : best) one.index = mine[static_cast<size_t>(one.index)];
      std::sort(best.begin(), best.end());
      for (int64_t i = 0; i < std::min<int64_t>(k, static_cast<int64_t>(best.size())); ++i) {
        index[m * k + i] = best[static_cast<size_t>(i)].index;
        distance[m * k + i] = best[static_cast<size_t>(i)].distance;
      }
    }
  });
  return out;
}

}  // namespace kinfolk
