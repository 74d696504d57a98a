// A datastore on disk: hidden states of a text, each with the token that followed.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "kinfolk/kernels/squared_distance.h"
#include "kinfolk/nn/model.h"
#include "kinfolk/nn/retrieve/mapped_file.h"

namespace kinfolk {

/// Where a stored text lies: its entry i is position i, whose key is the hidden state after tokens 0 .. i and whose
/// token is number i + 1.
struct StoredText {
  std::string path;
  int64_t first = 0;  ///< its entries are [first, first + count)
  int64_t count = 0;
  int64_t begin = 0;  ///< its token 0, which follows nothing
};

/// What was found to serve best on a text (kinfolk datastore tune).
struct Tuned {
  int64_t k = 0;  ///< 0: nothing was tuned
  double lambda = 0, temperature = 0;
  std::string text;   ///< what it was tuned on
  double bits = 0;    ///< per byte there
  double before = 0;  ///< without the store
};

/// What a datastore is, as its manifest says.
struct StoreManifest {
  std::string model;             ///< fingerprint of the model whose hidden states these are
  std::string recipe;            ///< its name, for people
  std::string run;               ///< path of its checkpoint when the store was built
  std::string type = "float16";  ///< of the keys: float32, float16 or bfloat16
  std::string metric = "squared";
  int64_t width = 0, vocabulary = 0;
  struct Part {
    std::string name;
    int64_t count = 0;
    std::vector<StoredText> texts;
  };
  std::vector<Part> parts;
  Tuned tuned;
};

/// A folder:
///   manifest.json                            a datastore is there when this is; written last
///   part-00000.keys .tokens .squares         rows of keys; int32; |key|^2 float32 of the keys as they are stored
///   graph.hnsw  ivf_pq.faiss                 ways to search (see search.h)
/// Adding a text adds a part; nothing that lies there is rewritten but the manifest, which is renamed into place. All
/// files are mapped, not read.
class Datastore {
 public:
  /// Throws Error "[datastore] PATH: expected ...; found ..." for what is not one, is cut short, or is of another
  /// version.
  static std::shared_ptr<const Datastore> open(const std::string& folder);
  static bool lies_in(const std::string& folder);  ///< is there a manifest?

  const std::string& folder() const { return folder_; }
  const StoreManifest& about() const { return about_; }
  int64_t size() const { return size_; }
  int64_t width() const { return about_.width; }
  kernels::KeyType type() const { return type_; }
  std::vector<StoredText> texts() const;
  int64_t bytes() const;  ///< of keys, tokens and squares

  /// Throws Error when its keys are another model's hidden states.
  void check(const Model& model) const;

  /// A row of a key as it is stored, `width` numbers of the type.
  const void* row(int64_t entry) const;
  int32_t token(int64_t entry) const;
  /// float32 [..., D] of int64 [...] entries.
  Tensor keys(const Tensor& entries) const;
  /// int64 of the same sizes.
  Tensor tokens(const Tensor& entries) const;
  /// Rows that lie one behind the other, at most `most`, from `first` on: views on the files.
  struct Block {
    int64_t first = 0;
    Tensor keys;     ///< [n, D] of the stored type
    Tensor squares;  ///< float32 [n]
  };
  Block block(int64_t first, int64_t most) const;

 private:
  struct Part {
    int64_t first = 0, count = 0;
    MappedFile keys, tokens, squares;
  };
  const Part& part_of(int64_t entry) const;
  std::string folder_;
  StoreManifest about_;
  kernels::KeyType type_ = kernels::KeyType::float32;
  int64_t size_ = 0, row_bytes_ = 0;
  std::vector<Part> parts_;
};

/// The number of bytes of a stored number, and its type in torch. Throws UsageError for an unknown name.
kernels::KeyType key_type(const std::string& name);
at::ScalarType scalar_type(kernels::KeyType type);

StoreManifest read_manifest(const std::string& folder);
/// Renamed into place.
void write_manifest(const std::string& folder, const StoreManifest& manifest);

}  // namespace kinfolk
