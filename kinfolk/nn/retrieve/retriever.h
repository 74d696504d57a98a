// What a head that retrieves asks: entries in memory, or a datastore on disk, without those that are its own.
#pragma once
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "kinfolk/nn/retrieve/own_entries.h"
#include "kinfolk/nn/retrieve/search.h"

namespace kinfolk {

/// The fact "place" int64 [B, L] of a batch: where in the text that `exclude` was given each token stands, -1 nowhere.
inline constexpr auto kPlace = "place";

class Retriever {
 public:
  /// Entries in memory lie in these two tensors, float32 [0, D] and int64 [0], which their owner may have registered:
  /// their storage is replaced when entries come. Beyond `capacity` the oldest are forgotten. `who`: for messages.
  Retriever(Tensor keys, Tensor tokens, int64_t capacity, int64_t vocabulary, std::string who);

  /// Entries in memory, after those that are there; targets below 0 are passed over.
  void remember(const Tensor& x, const Tensor& target);
  /// A datastore instead of what is in memory. The caller has checked whose it is.
  void attach(std::shared_ptr<const Datastore> store, std::unique_ptr<Search> search);
  void forget();  ///< empties memory, lets go of the datastore and of own runs
  int64_t stored() const;
  const Search* search() const { return search_.get(); }
  const Datastore* store() const { return store_.get(); }

  /// What positions with a place (fact "place") never find. Of the text that is read next, whatever was said before.
  void exclude(std::vector<OwnRun> runs);

  struct Found {
    Tensor index;     ///< int64 [M, k], nearest first; -1: no further entry
    Tensor distance;  ///< float32 [M, k] squared; infinite where index is -1
  };
  /// For queries [M, D]; `place` int64 [M] or undefined: nothing is their own. k is cut to what is stored.
  Found find(const Tensor& queries, int64_t k, const Tensor& place = {});
  Tensor keys(const Tensor& index) const;    ///< float32 [..., D]; of -1 those of any entry
  Tensor tokens(const Tensor& index) const;  ///< int64 [...]; of -1 that of any entry

 private:
  void settle();  // joins what was remembered into the tensors
  std::vector<int64_t> own_of(int64_t place) const;
  Tensor keys_, tokens_;
  int64_t capacity_, vocabulary_;
  std::string who_;
  Tensor squares_;  // |key|^2, [N], of the keys as they were at `squared_` (place and version)
  std::pair<const void*, uint32_t> squared_ = {nullptr, 0};
  std::vector<Tensor> new_keys_, new_tokens_;
  int64_t new_count_ = 0;
  std::shared_ptr<const Datastore> store_;
  std::unique_ptr<Search> search_;
  std::vector<OwnRun> own_;
  int64_t most_own_ = 0;  // entries of one place
};

/// The places of the rows of x [B, L, D] that a head reads: the fact when it is of these rows, else undefined.
Tensor places_of(const Pass& pass, int64_t rows);

/// A head that retrieves.
struct Retrieves {
  virtual ~Retrieves() = default;
  virtual Retriever& retriever() = 0;
  virtual std::string search_kind() const = 0;  ///< exact, graph or ivf_pq, as the recipe says
  virtual int64_t search_effort() const = 0;    ///< 0: the standard one
  /// Takes over what a datastore was tuned to, but for the options named.
  virtual void tune(const Tuned& tuned, const std::vector<std::string>& but) = 0;
};

/// Checks whose datastore it is and gives it to the model's head, which must retrieve.
void attach_store(Model& model, std::shared_ptr<const Datastore> store, const std::vector<std::string>& set = {});

}  // namespace kinfolk
