#include "kinfolk/nn/retrieve/datastore.h"

#include <algorithm>

#include "kinfolk/core/errors.h"
#include "kinfolk/nn/fingerprint.h"

namespace kinfolk {
namespace {

namespace fs = std::filesystem;

size_t times(int64_t a, int64_t b) { return static_cast<size_t>(a) * static_cast<size_t>(b); }

}  // namespace

kernels::KeyType key_type(const std::string& name) {
  if (name == "float32") return kernels::KeyType::float32;
  if (name == "float16") return kernels::KeyType::float16;
  if (name == "bfloat16") return kernels::KeyType::bfloat16;
  refuse("[datastore.type] expected float32, float16 or bfloat16; found ", name);
}

at::ScalarType scalar_type(kernels::KeyType type) {
  return type == kernels::KeyType::float16    ? at::kHalf
         : type == kernels::KeyType::bfloat16 ? at::kBFloat16
                                              : at::kFloat;
}

bool Datastore::lies_in(const std::string& folder) {
  std::error_code error;
  return fs::is_regular_file(fs::path(folder) / "manifest.json", error);
}

std::shared_ptr<const Datastore> Datastore::open(const std::string& folder) {
  auto store = std::make_shared<Datastore>();
  store->folder_ = folder;
  store->about_ = read_manifest(folder);
  store->type_ = key_type(store->about_.type);
  store->row_bytes_ = store->width() * static_cast<int64_t>(at::elementSize(scalar_type(store->type_)));
  for (const auto& part : store->about_.parts) {
    const std::string stem = (fs::path(folder) / part.name).string();
    Part mapped;
    mapped.first = store->size_;
    mapped.count = part.count;
    mapped.keys = MappedFile(stem + ".keys", times(part.count, store->row_bytes_));
    mapped.tokens = MappedFile(stem + ".tokens", times(part.count, sizeof(int32_t)));
    mapped.squares = MappedFile(stem + ".squares", times(part.count, sizeof(float)));
    store->size_ += part.count;
    if (part.count > 0) store->parts_.push_back(std::move(mapped));
  }
  return store;
}

std::vector<StoredText> Datastore::texts() const {
  std::vector<StoredText> out;
  for (const auto& part : about_.parts) out.insert(out.end(), part.texts.begin(), part.texts.end());
  return out;
}

int64_t Datastore::bytes() const { return size_ * (row_bytes_ + 8); }

void Datastore::check(const Model& model) const {
  if (model.size().width != width() || model.size().vocabulary != about_.vocabulary) {
    fail("[datastore] ", folder_, ": expected hidden states of width ", model.size().width, " over ",
         model.size().vocabulary, " tokens; found ", width(), " over ", about_.vocabulary);
  }
  if (const std::string print = fingerprint(model); print != about_.model) {
    fail("[datastore] ", folder_, ": expected the hidden states of this model (fingerprint ", print,
         "); found those of another, a ", about_.recipe, " of fingerprint ", about_.model,
         " (build one: kinfolk datastore build RUN --data PATH --out D)");
  }
}

const Datastore::Part& Datastore::part_of(int64_t entry) const {
  if (parts_.size() == 1) return parts_.front();
  const auto after = std::upper_bound(parts_.begin(), parts_.end(), entry,
                                      [](int64_t value, const Part& part) { return value < part.first; });
  return *(after - 1);
}

const void* Datastore::row(int64_t entry) const {
  const Part& part = part_of(entry);
  return part.keys.data() + (entry - part.first) * row_bytes_;
}

int32_t Datastore::token(int64_t entry) const {
  const Part& part = part_of(entry);
  const int32_t token = reinterpret_cast<const int32_t*>(part.tokens.data())[entry - part.first];
  if (token < 0 || token >= about_.vocabulary) {
    fail("[datastore] ", folder_, ": expected tokens from 0 to ", about_.vocabulary - 1, "; found ", token,
         " in entry ", entry);
  }
  return token;
}

Tensor Datastore::keys(const Tensor& entries) const {
  const Tensor flat = entries.to(at::kCPU, at::kLong).contiguous().flatten();
  const int64_t n = flat.numel();
  const Tensor raw = at::empty({n, width()}, at::TensorOptions().dtype(scalar_type(type_)));
  auto* to = static_cast<char*>(raw.mutable_data_ptr());
  const auto* which = flat.const_data_ptr<int64_t>();
  for (int64_t i = 0; i < n; ++i) std::memcpy(to + i * row_bytes_, row(which[i]), static_cast<size_t>(row_bytes_));
  std::vector<int64_t> sizes(entries.sizes().begin(), entries.sizes().end());
  sizes.push_back(width());
  return raw.to(at::kFloat).view(sizes);
}

Tensor Datastore::tokens(const Tensor& entries) const {
  const Tensor flat = entries.to(at::kCPU, at::kLong).contiguous();
  const Tensor out = at::empty(flat.sizes(), at::kLong);
  const auto* which = flat.const_data_ptr<int64_t>();
  auto* to = out.mutable_data_ptr<int64_t>();
  for (int64_t i = 0; i < flat.numel(); ++i) to[i] = token(which[i]);
  return out;
}

Datastore::Block Datastore::block(int64_t first, int64_t most) const {
  const Part& part = part_of(first);
  const int64_t from = first - part.first, n = std::min(most, part.count - from);
  const auto view = [&](const MappedFile& file, int64_t row_bytes, at::IntArrayRef sizes, at::ScalarType type) {
    return at::from_blob(const_cast<char*>(file.data()) + from * row_bytes, sizes, at::TensorOptions().dtype(type));
  };
  return {first, view(part.keys, row_bytes_, {n, width()}, scalar_type(type_)),
          view(part.squares, sizeof(float), {n}, at::kFloat)};
}

}  // namespace kinfolk
