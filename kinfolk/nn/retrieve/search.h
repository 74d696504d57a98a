// Ways to find the entries of a datastore that are nearest to a query.
#pragma once
#include <functional>
#include <memory>
#include <string>

#include "kinfolk/nn/retrieve/datastore.h"
#include "kinfolk/ops/nearest.h"

namespace kinfolk {

/// A way to search. Several threads may ask at once.
struct Search {
  virtual ~Search() = default;
  /// The k entries with the smallest |q - key|^2, or nearly these, nearest first, for queries float32 [M, D]: see
  /// ops/nearest.h. Where fewer are found the index is -1. No gradient passes.
  virtual Nearest nearest(const Tensor& queries, int64_t k) const = 0;
  virtual std::string words() const = 0;  ///< "exact search in 5,000,000 entries"
};

/// "exact", "graph" and, where it was built with FAISS (CMake: KINFOLK_FAISS), "ivf_pq".
std::vector<std::string> search_kinds();

/// All keys, block after block of the files, by products: exact whatever the size, and scratch that does not grow with
/// it (one block of 65536 keys in float32).
std::unique_ptr<Search> exact_search(std::shared_ptr<const Datastore> store);

/// A graph whose nodes are linked to near ones, searched greedily from the top down (Malkov and Yashunin 2016, by
/// hnswlib). The links lie in memory and in graph.hnsw, some 200 bytes an entry; the keys stay where they are.
struct GraphOptions {
  int64_t links = 16;        ///< of a node on the higher levels; twice as many on the lowest
  int64_t candidates = 200;  ///< looked at to place a node
};
/// Makes the graph, or goes on with the one that lies there until it holds every entry.
void build_graph(std::shared_ptr<const Datastore> store, const GraphOptions& options = {},
                 const std::function<void(double)>& progress = {});
/// `effort`: candidates of a query, at least k: more finds more.
std::unique_ptr<Search> graph_search(std::shared_ptr<const Datastore> store, int64_t effort = 128);

/// Cells around centroids, keys as codes of `bytes` bytes (Jegou et al. 2011, by FAISS), in ivf_pq.faiss; the
/// candidates are ordered anew by the keys themselves.
struct IvfPqOptions {
  int64_t cells = 0;   ///< 0: about 4 sqrt(entries)
  int64_t bytes = 16;  ///< of a code; divides the width
};
void build_ivf_pq(std::shared_ptr<const Datastore> store, const IvfPqOptions& options = {},
                  const std::function<void(double)>& progress = {});
/// `effort`: cells looked into.
std::unique_ptr<Search> ivf_pq_search(std::shared_ptr<const Datastore> store, int64_t effort = 32);

/// By name; `effort` 0: the standard one. Refuses a kind that this program lacks.
std::unique_ptr<Search> open_search(const std::string& kind, std::shared_ptr<const Datastore> store,
                                    int64_t effort = 0);

/// Puts candidates int64 [M, n] (-1: none) in the order of their exact distances, and keeps the first k.
Nearest refine(const Datastore& store, const Tensor& queries, const Tensor& candidates, int64_t k);

}  // namespace kinfolk
