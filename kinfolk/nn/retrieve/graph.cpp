// The graph of hnswlib over the keys of a datastore, which stay in their files: a node holds the number of its entry.
#define NO_MANUAL_VECTORIZATION  // distances are our own kernels
#include <hnswlib/hnswlib.h>
#include <unistd.h>

#include <mutex>

#include "kinfolk/core/errors.h"
#include "kinfolk/core/parallel.h"
#include "kinfolk/nn/retrieve/search.h"

namespace kinfolk {
namespace {

namespace fs = std::filesystem;

thread_local const void* asked = nullptr;  // the query, in the type of the keys
constexpr int64_t kAsked = -1;             // its number

/// What hnswlib knows of its nodes.
class Nodes : public hnswlib::SpaceInterface<float> {
 public:
  explicit Nodes(const Datastore& store)
      : store_(store), distance_(kernels::squared_distance(store.type())), width_(store.width()) {}
  size_t get_data_size() override { return sizeof(int64_t); }
  hnswlib::DISTFUNC<float> get_dist_func() override { return between; }
  void* get_dist_func_param() override { return this; }

 private:
  const void* row(const void* node) const {
    int64_t entry = 0;
    std::memcpy(&entry, node, sizeof entry);
    return entry == kAsked ? asked : store_.row(entry);
  }
  static float between(const void* a, const void* b, const void* self) {
    const auto& nodes = *static_cast<const Nodes*>(self);
    return nodes.distance_(nodes.row(a), nodes.row(b), nodes.width_);
  }
  const Datastore& store_;
  kernels::SquaredDistance distance_;
  int64_t width_;
};

using Graph = hnswlib::HierarchicalNSW<float>;

std::string graph_file(const Datastore& store) { return (fs::path(store.folder()) / "graph.hnsw").string(); }

std::unique_ptr<Graph> load_graph(const Datastore& store, Nodes& nodes) {
  const std::string path = graph_file(store);
  std::unique_ptr<Graph> graph;
  try {
    graph = std::make_unique<Graph>(&nodes, path, false, static_cast<size_t>(std::max<int64_t>(store.size(), 1)));
  } catch (const std::exception& error) {
    fail("[datastore] ", path, ": expected a graph of hnswlib; found ", error.what());
  }
  const auto count = static_cast<int64_t>(graph->cur_element_count);
  bool sound = count <= store.size() && graph->size_data_per_element_ == graph->label_offset_ + sizeof(size_t) &&
               graph->label_offset_ == graph->offsetData_ + sizeof(int64_t);
  for (int64_t node = 0; sound && node < count; ++node) {
    sound = static_cast<int64_t>(graph->getExternalLabel(static_cast<hnswlib::tableint>(node))) < store.size();
  }
  if (!sound) fail("[datastore] ", path, ": expected a graph of at most ", store.size(), " entries; found another");
  return graph;
}

/// Beside it, then renamed. hnswlib does not say when the disk is full: the size does.
void save_graph(Graph& graph, const std::string& path) {
  const std::string beside = text(path, ".", getpid(), ".tmp");
  graph.saveIndex(beside);
  size_t bytes = 10 * sizeof(size_t) + sizeof(double) + sizeof(int) + sizeof(hnswlib::tableint);
  bytes += graph.cur_element_count * (graph.size_data_per_element_ + sizeof(unsigned));
  for (size_t i = 0; i < graph.cur_element_count; ++i) {
    bytes += static_cast<size_t>(graph.element_levels_[i]) * graph.size_links_per_element_;
  }
  std::error_code error;
  const auto written = fs::file_size(beside, error);
  if (error || written != bytes) {
    fs::remove(beside, error);
    fail("[datastore] ", path, ": expected to write ", bytes, " bytes; found room for ", error ? 0 : written);
  }
  fs::rename(beside, path);
}

class GraphSearch : public Search {
 public:
  GraphSearch(std::shared_ptr<const Datastore> store, int64_t effort)
      : store_(std::move(store)), nodes_(*store_), graph_(load_graph(*store_, nodes_)), effort_(effort) {
    graph_->setEf(static_cast<size_t>(effort));
    const auto count = static_cast<int64_t>(graph_->cur_element_count);
    if (count != store_->size()) {
      fail("[datastore] ", store_->folder(), ": expected a graph of all ", store_->size(), " entries; found one of ",
           count, " (kinfolk datastore index D goes on with it)");
    }
  }
  std::string words() const override {
    return text("graph search in ", store_->size(), " entries, ", effort_, " candidates");
  }

  Nearest nearest(const Tensor& queries, int64_t k) const override {
    const int64_t M = queries.size(0), most = std::min(k, store_->size());
    const Tensor q = queries.detach().to(at::kCPU, scalar_type(store_->type())).contiguous();
    const Tensor found = at::full({M, std::max<int64_t>(most, 1)}, -1, at::kLong);
    const auto* rows = static_cast<const char*>(q.const_data_ptr());
    const int64_t row_bytes = M > 0 ? static_cast<int64_t>(q.nbytes()) / M : 0;
    auto* out = found.mutable_data_ptr<int64_t>();
    parallel_for(0, most > 0 ? M : 0, 4, [&](int64_t from, int64_t until) {
      for (int64_t m = from; m < until; ++m) {
        asked = rows + m * row_bytes;
        auto best = graph_->searchKnn(&kAsked, static_cast<size_t>(most));
        for (int64_t i = 0; !best.empty(); best.pop(), ++i) out[m * most + i] = static_cast<int64_t>(best.top().second);
      }
    });
    return refine(*store_, queries, found, k);
  }

 private:
  std::shared_ptr<const Datastore> store_;
  Nodes nodes_;
  std::unique_ptr<Graph> graph_;
  int64_t effort_;
};

}  // namespace

void build_graph(std::shared_ptr<const Datastore> store, const GraphOptions& options,
                 const std::function<void(double)>& progress) {
  const int64_t size = store->size();
  if (size >= int64_t{UINT32_MAX}) fail("[datastore.graph] expected fewer than 2^32 entries; found ", size);
  Nodes nodes(*store);
  const std::string path = graph_file(*store);
  std::error_code error;
  auto graph =
      fs::exists(path, error)
          ? load_graph(*store, nodes)
          : std::make_unique<Graph>(&nodes, static_cast<size_t>(std::max<int64_t>(size, 1)),
                                    static_cast<size_t>(options.links), static_cast<size_t>(options.candidates));
  constexpr int64_t kStep = 1024;
  for (int64_t from = static_cast<int64_t>(graph->cur_element_count); from < size; from += kStep) {
    const int64_t until = std::min(size, from + kStep);
    const auto add = [&](int64_t first, int64_t last) {
      for (int64_t entry = first; entry < last; ++entry) graph->addPoint(&entry, static_cast<size_t>(entry));
    };
    if (from == 0) {
      add(from, until);  // the first node must be there before others look for it
    } else {
      parallel_for(from, until, 64, add);
    }
    if (progress) progress(static_cast<double>(until) / static_cast<double>(size));
  }
  save_graph(*graph, path);
}

std::unique_ptr<Search> graph_search(std::shared_ptr<const Datastore> store, int64_t effort) {
  std::error_code error;
  if (!fs::exists(graph_file(*store), error)) {
    fail("[datastore] ", store->folder(), ": expected a graph; found none (kinfolk datastore index D makes it)");
  }
  return std::make_unique<GraphSearch>(std::move(store), effort);
}

}  // namespace kinfolk
