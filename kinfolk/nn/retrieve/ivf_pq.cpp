// Cells and codes by FAISS, where the program is built with it (CMake: KINFOLK_FAISS).
#ifdef KINFOLK_FAISS
#include <faiss/IndexFlat.h>
#include <faiss/IndexIVFPQ.h>
#include <faiss/index_io.h>
#include <unistd.h>

#include "kinfolk/core/errors.h"
#include "kinfolk/nn/retrieve/search.h"

namespace kinfolk {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kBlock = 65536;
constexpr int64_t kLearn = 64;  // keys a cell that centroids are learned from
constexpr int64_t kMore = 4;    // candidates of a neighbour that are put in order by the keys themselves

std::string index_file(const Datastore& store) { return (fs::path(store.folder()) / "ivf_pq.faiss").string(); }

std::unique_ptr<faiss::IndexIVFPQ> load_index(const Datastore& store) {
  const std::string path = index_file(store);
  std::unique_ptr<faiss::Index> read;
  try {
    read.reset(faiss::read_index(path.c_str()));
  } catch (const std::exception& error) {
    fail("[datastore] ", path, ": expected an index of FAISS; found ", std::string(error.what()).substr(0, 200));
  }
  auto* found = dynamic_cast<faiss::IndexIVFPQ*>(read.get());
  if (!found || found->d != store.width() || found->ntotal > store.size()) {
    fail("[datastore] ", path, ": expected IVF-PQ of width ", store.width(), "; found another index");
  }
  read.release();
  return std::unique_ptr<faiss::IndexIVFPQ>(found);
}

void save_index(const faiss::IndexIVFPQ& index, const std::string& path) {
  const std::string beside = text(path, ".", getpid(), ".tmp");
  try {
    faiss::write_index(&index, beside.c_str());
  } catch (const std::exception& error) {
    std::error_code ignored;
    fs::remove(beside, ignored);
    fail("[datastore] ", path, ": expected to write the index; found ", std::string(error.what()).substr(0, 200));
  }
  fs::rename(beside, path);
}

std::unique_ptr<faiss::IndexIVFPQ> learn_index(const Datastore& store, const IvfPqOptions& options) {
  const int64_t size = store.size();
  if (size < 256) fail("[datastore.ivf_pq] expected at least 256 entries, for as many codes; found ", size);
  if (store.width() % options.bytes != 0) {
    refuse("[datastore.ivf_pq.code] expected a divisor of the width ", store.width(), "; found ", options.bytes);
  }
  const auto usual = static_cast<int64_t>(4 * std::sqrt(static_cast<double>(size)));
  const int64_t cells = std::clamp<int64_t>(options.cells > 0 ? options.cells : usual, 1, size / 32);
  auto* coarse = new faiss::IndexFlatL2(store.width());
  auto index = std::make_unique<faiss::IndexIVFPQ>(coarse, static_cast<size_t>(store.width()),
                                                   static_cast<size_t>(cells), static_cast<size_t>(options.bytes), 8);
  index->own_fields = true;
  index->cp.min_points_per_centroid = index->pq.cp.min_points_per_centroid = 1;  // as many as were chosen here
  const int64_t learned = std::min(size, std::max<int64_t>(cells * kLearn, 256 * kLearn));
  const Tensor some = (at::arange(learned, at::kDouble) * (static_cast<double>(size) / static_cast<double>(learned)))
                          .to(at::kLong)
                          .clamp_max(size - 1);
  const Tensor keys = store.keys(some).contiguous();
  index->train(learned, keys.const_data_ptr<float>());
  return index;
}

class IvfPqSearch : public Search {
 public:
  IvfPqSearch(std::shared_ptr<const Datastore> store, int64_t effort)
      : store_(std::move(store)), index_(load_index(*store_)) {
    index_->nprobe = static_cast<size_t>(effort);
    if (index_->ntotal != store_->size()) {
      fail("[datastore] ", store_->folder(), ": expected an index of all ", store_->size(), " entries; found one of ",
           index_->ntotal, " (kinfolk datastore index D --kind ivf_pq goes on with it)");
    }
  }
  std::string words() const override {
    return text("IVF-PQ search in ", store_->size(), " entries, ", index_->nprobe, " of ", index_->nlist, " cells");
  }
  Nearest nearest(const Tensor& queries, int64_t k) const override {
    const int64_t M = queries.size(0), asked = std::min(store_->size(), k * kMore);
    const Tensor q = queries.detach().to(at::kCPU, at::kFloat).contiguous();
    const Tensor distance = at::empty({M, asked}, at::kFloat), index = at::full({M, asked}, -1, at::kLong);
    if (M > 0) {
      index_->search(M, q.const_data_ptr<float>(), asked, distance.mutable_data_ptr<float>(),
                     index.mutable_data_ptr<int64_t>());
    }
    return refine(*store_, queries, index, k);
  }

 private:
  std::shared_ptr<const Datastore> store_;
  std::unique_ptr<faiss::IndexIVFPQ> index_;
};

}  // namespace

void build_ivf_pq(std::shared_ptr<const Datastore> store, const IvfPqOptions& options,
                  const std::function<void(double)>& progress) {
  const std::string path = index_file(*store);
  std::error_code error;
  const auto index = fs::exists(path, error) ? load_index(*store) : learn_index(*store, options);
  for (int64_t first = index->ntotal; first < store->size();) {
    const Tensor keys = store->block(first, kBlock).keys.to(at::kFloat).contiguous();
    index->add(keys.size(0), keys.const_data_ptr<float>());
    first += keys.size(0);
    if (progress) progress(static_cast<double>(first) / static_cast<double>(store->size()));
  }
  save_index(*index, path);
}

std::unique_ptr<Search> ivf_pq_search(std::shared_ptr<const Datastore> store, int64_t effort) {
  std::error_code error;
  if (!fs::exists(index_file(*store), error)) {
    fail("[datastore] ", store->folder(), ": expected an index; found none (kinfolk datastore index D --kind ivf_pq ",
         "makes it)");
  }
  return std::make_unique<IvfPqSearch>(std::move(store), effort);
}

}  // namespace kinfolk
#endif
