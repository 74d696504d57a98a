#include "kinfolk/nn/retrieve/search.h"

#include <ATen/Parallel.h>

#include "kinfolk/core/errors.h"
#include "kinfolk/nn/retrieve/testing.h"

namespace kinfolk {
namespace {

/// Keys in clusters, as hidden states lie.
Tensor clustered(int64_t n, int64_t width) {
  const Tensor centres = at::randn({std::max<int64_t>(1, n / 20), width}) * 2;
  return centres.index_select(0, at::randint(0, centres.size(0), {n}, at::kLong)) + 0.7 * at::randn({n, width});
}

/// By sorting all distances in double; equally near ones in the order of entries.
Tensor brute_force(const Tensor& queries, const Tensor& keys, int64_t k) {
  const Tensor distance =
      (queries.to(at::kDouble).unsqueeze(1) - keys.to(at::kDouble).unsqueeze(0)).square().sum(-1).to(at::kFloat);
  return std::get<1>(at::sort(distance, /*stable=*/true, -1, false)).slice(1, 0, k);
}

double recall(const Tensor& got, const Tensor& want) {
  return (got.unsqueeze(2) == want.unsqueeze(1)).any(2).to(at::kDouble).mean().item<double>();
}

TEST(Search, ExactIsBruteForceOverAllParts) {
  at::manual_seed(1);
  for (const char* type : {"float32", "float16", "bfloat16"}) {
    const TemporaryFolder folder;
    const Tensor keys = clustered(2000, 12), queries = clustered(70, 12);
    for (const auto& [from, to] : std::vector<std::pair<int64_t, int64_t>>{{0, 3}, {3, 1500}, {1500, 2000}}) {
      stored(folder / "d", keys.slice(0, from, to), at::zeros({to - from}, at::kLong), type);
    }
    const auto store = Datastore::open(folder / "d");
    const Tensor lie = store->keys(at::arange(2000));
    for (const int64_t k : {1, 5, 32}) {
      const Nearest got = exact_search(store)->nearest(queries, k);
      EXPECT_TRUE(got.index.equal(brute_force(queries, lie, k))) << type << " " << k;
      const Tensor distance = (queries.unsqueeze(1) - store->keys(got.index)).square().sum(-1);
      EXPECT_LT((distance - got.distance).abs().max().item<double>(), 1e-4);
    }
  }
}

TEST(Search, ALargeStoreIsSearchedBlockAfterBlock) {
  at::manual_seed(2);
  const TemporaryFolder folder;
  const Tensor keys = at::randn({140000, 3}), queries = at::randn({9, 3});  // more than two blocks
  const auto store = stored(folder / "d", keys, at::zeros({140000}, at::kLong));
  EXPECT_TRUE(exact_search(store)->nearest(queries, 20).index.equal(brute_force(queries, keys, 20)));
}

TEST(Search, MoreThanThereAre) {
  const TemporaryFolder folder;
  const Tensor keys = at::randn({5, 4});
  const auto store = stored(folder / "d", keys, at::arange(5));
  build_graph(store);
  for (const char* kind : {"exact", "graph"}) {
    const Nearest got = open_search(kind, store)->nearest(keys, 8);
    EXPECT_TRUE(got.index.slice(1, 0, 5).equal(brute_force(keys, keys, 5))) << kind;
    EXPECT_TRUE(got.index.slice(1, 5).eq(-1).all().item<bool>()) << kind;
    EXPECT_TRUE(got.distance.slice(1, 5).isinf().all().item<bool>()) << kind;
    EXPECT_EQ(open_search(kind, store)->nearest(at::zeros({0, 4}), 3).index.size(0), 0) << kind;
    EXPECT_THROW(open_search(kind, store)->nearest(at::zeros({1, 3}), 3), Error) << kind;
  }
}

TEST(Search, NothingInAnEmptyStore) {
  const TemporaryFolder folder;
  const auto store = stored(folder / "d", at::zeros({0, 4}), at::zeros({0}, at::kLong));
  build_graph(store);
  for (const char* kind : {"exact", "graph"}) {
    const Nearest got = open_search(kind, store)->nearest(at::zeros({2, 4}), 3);
    EXPECT_TRUE(got.index.eq(-1).all().item<bool>()) << kind;
    EXPECT_TRUE(got.distance.isinf().all().item<bool>()) << kind;
  }
}

TEST(Search, OfEqualKeysTheEarliestFirst) {
  const TemporaryFolder folder;
  const Tensor one = at::randn({1, 4});
  stored(folder / "d", one.expand({300, 4}), at::zeros({300}, at::kLong));
  const auto store = stored(folder / "d", one.expand({300, 4}), at::zeros({300}, at::kLong));
  EXPECT_TRUE(exact_search(store)->nearest(one, 400).index[0].equal(at::arange(400)));
  build_graph(store);
  EXPECT_EQ(graph_search(store)->nearest(one, 32).distance.max().item<float>(), 0.0F);
}

TEST(Search, AGraphFindsAlmostAll) {
  at::manual_seed(4);
  for (const char* type : {"float32", "float16", "bfloat16"}) {
    const TemporaryFolder folder;
    const Tensor keys = clustered(4000, 16), queries = clustered(100, 16);
    const auto store = stored(folder / "d", keys, at::zeros({4000}, at::kLong), type);
    build_graph(store);
    const Nearest got = graph_search(store, 128)->nearest(queries, 32),
                  want = exact_search(store)->nearest(queries, 32);
    EXPECT_GT(recall(got.index, want.index), 0.95) << type;
    const Tensor rising = got.distance.slice(1, 1) - got.distance.slice(1, 0, 31);
    EXPECT_GE(rising.min().item<float>(), 0) << "nearest first";
    EXPECT_TRUE(graph_search(store, 128)->nearest(queries, 32).index.equal(got.index)) << "from the file, again";
    const Tensor distance = (queries.unsqueeze(1) - store->keys(got.index)).square().sum(-1);
    EXPECT_LT((distance - got.distance).abs().max().item<double>(), 1e-3);
  }
}

TEST(Search, EveryKeyFindsItselfWhateverThreadAddedIt) {
  at::manual_seed(6);
  const TemporaryFolder folder;
  const int64_t n = 4000;  // more than one block of each of the threads that build the graph
  const auto store = stored(folder / "d", at::randn({n, 16}), at::zeros({n}, at::kLong));
  const int before = at::get_num_threads();
  at::set_num_threads(4);
  build_graph(store);
  const Tensor all = at::arange(n, at::kLong);
  for (const char* kind : {"exact", "graph"}) {
    const Nearest got = open_search(kind, store)->nearest(store->keys(all), 1);
    EXPECT_TRUE(got.index.select(1, 0).equal(all)) << kind;
    EXPECT_LE(got.distance.max().item<double>(), 1e-5) << kind;
  }
  at::set_num_threads(before);
}

TEST(Search, AGraphGoesOnWhenEntriesAreAdded) {
  at::manual_seed(5);
  const TemporaryFolder folder;
  const Tensor keys = clustered(1500, 8), tokens = at::zeros({1500}, at::kLong);
  auto store = stored(folder / "d", keys.slice(0, 0, 1000), tokens.slice(0, 0, 1000));
  EXPECT_THROW(graph_search(store), Error);  // none yet
  build_graph(store);
  store = stored(folder / "d", keys.slice(0, 1000), tokens.slice(0, 1000));
  EXPECT_THROW(graph_search(store), Error);  // of 1000 of the 1500
  build_graph(store);
  const Tensor got = graph_search(store)->nearest(keys, 1).index.squeeze(1);
  EXPECT_GT(got.eq(at::arange(1500)).to(at::kDouble).mean().item<double>(), 0.99);
  const std::string file = folder / "d/graph.hnsw";
  std::filesystem::resize_file(file, std::filesystem::file_size(file) - 5);
  EXPECT_THROW(graph_search(store), Error);
}

TEST(Search, NamesWhatItHas) {
  const TemporaryFolder folder;
  const auto store = stored(folder / "d", at::randn({5, 4}), at::arange(5));
  EXPECT_THROW(open_search("tree", store), UsageError);
  EXPECT_EQ(open_search("exact", store)->words(), "exact search in 5 entries");
  const auto kinds = search_kinds();
  if (std::find(kinds.begin(), kinds.end(), "ivf_pq") == kinds.end()) {
    EXPECT_THROW(open_search("ivf_pq", store), UsageError);
    EXPECT_THROW(build_ivf_pq(store), UsageError);
  }
}

TEST(Search, CellsAndCodesFindMostAndGoOn) {
  const auto kinds = search_kinds();
  if (std::find(kinds.begin(), kinds.end(), "ivf_pq") == kinds.end()) GTEST_SKIP() << "built without FAISS";
  at::manual_seed(6);
  const TemporaryFolder folder;
  const Tensor keys = clustered(6000, 16), queries = clustered(100, 16), tokens = at::zeros({6000}, at::kLong);
  auto store = stored(folder / "d", keys.slice(0, 0, 5000), tokens.slice(0, 0, 5000), "float16");
  EXPECT_THROW(ivf_pq_search(store), Error);
  build_ivf_pq(store, {64, 8});
  store = stored(folder / "d", keys.slice(0, 5000), tokens.slice(0, 5000));
  EXPECT_THROW(ivf_pq_search(store), Error);
  build_ivf_pq(store);
  const Nearest want = exact_search(store)->nearest(queries, 16);
  const Nearest some = ivf_pq_search(store, 8)->nearest(queries, 16),
                all = ivf_pq_search(store, 64)->nearest(queries, 16);
  EXPECT_GT(recall(some.index, want.index), 0.8);
  EXPECT_GE(recall(all.index, want.index), recall(some.index, want.index) - 0.02);
  EXPECT_GE((some.distance.slice(1, 1) - some.distance.slice(1, 0, 15)).min().item<float>(), 0);
  std::ofstream(folder / "d/ivf_pq.faiss") << "no index";
  EXPECT_THROW(ivf_pq_search(store), Error);
}

TEST(SquaredDistance, OfEveryTypeAndWidth) {
  for (const auto& [type, name] :
       std::vector<std::pair<kernels::KeyType, at::ScalarType>>{{kernels::KeyType::float32, at::kFloat},
                                                                {kernels::KeyType::float16, at::kHalf},
                                                                {kernels::KeyType::bfloat16, at::kBFloat16}}) {
    for (const int64_t width : {1, 3, 7, 8, 16, 31, 64, 100}) {
      const Tensor a = at::randn({width}).to(name), b = (at::randn({width}) * 1e-5).to(name);  // some subnormal halves
      const double want = (a.to(at::kDouble) - b.to(at::kDouble)).square().sum().item<double>();
      const float got = kernels::squared_distance(type)(a.const_data_ptr(), b.const_data_ptr(), width);
      EXPECT_NEAR(got, want, 1e-5 * want) << width;
    }
  }
}

}  // namespace
}  // namespace kinfolk
