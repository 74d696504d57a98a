// What a model has read, and how it goes on: one object for every member and every kind of memory.
#pragma once
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "kinfolk/core/safetensors.h"
#include "kinfolk/nn/model.h"

namespace kinfolk {

struct SessionOptions {
  int64_t lanes = 1;         ///< texts side by side
  int64_t memory_limit = 0;  ///< bytes of state, all lanes together, spare memory of caches included; 0: none
  /// What happens where a state that grows meets the memory limit:
  ///   "drop"    each query meets the newest N keys, older ones are dropped: as if every pattern were cut by window(N);
  ///   "refeed"  a fresh state is made from the newest half of the tokens that fit;
  ///   "stop"    feeding more is an error.
  /// Where positions end (Traits::context) nothing can be dropped: "drop" does as "refeed" there.
  std::string at_limit = "drop";
  int64_t chunk = 256;  ///< tokens of one call, at most: changes speed and memory alone
  uint64_t seed = 0;    ///< of the member's own draws
};

/// A model with a state. The model must outlive it, and its weights must stay as they are. Copies share memory until
/// one of them goes on, and are independent.
///
///   Session session(model);
///   session.feed(text);                       // int64 [1, L], any length
///   Tensor scores = session.step(token);      // [1, V]
///   session.save("talk.safetensors");         // Session::load(model, "talk.safetensors") goes on bit for bit
///
/// Refuses members that do not stream, and a memory limit below the state that one token needs.
class Session {
 public:
  /// Scores [B, n, V] of the tokens from `from` on, counted in this feed; false: feed no more.
  using Visit = std::function<bool(const Tensor& scores, int64_t from)>;
  using Facts = std::map<std::string, Tensor>;

  explicit Session(Model& model, SessionOptions options = {});

  /// Reads tokens int64 [B, L] in chunks and returns the scores after the last of each lane, [B, V]; undefined where a
  /// visit ended it. Of the facts of a batch those of [B, L] are cut as the tokens are, others go to every call.
  Tensor feed(const Tensor& tokens, const Visit& visit = {}, const Facts& facts = {});
  Tensor step(const Tensor& token) { return feed(token.view({-1, 1})); }  ///< int64 [B]
  Tensor scores() const { return scores_; }  ///< of the last feed; undefined before it and after `truncate`
  /// Of tokens int64 [B, L] that are to be fed next, how many at the front `feed` would read only to forget them at the
  /// limit: they are counted as read, and a fresh state is there for the rest, which is never empty. 0: nothing
  /// changes.
  int64_t skip(const Tensor& tokens);

  int64_t lanes() const { return options_.lanes; }
  int64_t position(int64_t lane = 0) const;  ///< valid tokens that were read
  /// The newest valid tokens that were read, oldest first, at least 1024 or as many as `keep_recent` asked for (all,
  /// where fewer were read). They are no part of the state, and `bytes` leaves them out.
  const std::vector<int64_t>& recent(int64_t lane = 0) const { return recent_.at(static_cast<size_t>(lane)); }
  /// Throws UsageError when so many can no longer be known.
  void keep_recent(int64_t tokens);
  /// Takes lanes (-1: all) back to their first `position` tokens. Throws Error with the reason where the member cannot,
  /// and then nothing has changed: recurrent states keep no past, and windows no keys that were dropped. 0 is `reset`.
  void truncate(int64_t position, int64_t lane = -1);
  void reset(int64_t lane = -1);
  void select(const Tensor& lanes);  ///< int64 [n]: reorders, repeats or drops lanes

  int64_t bytes() const;                        ///< of the memory that the state holds now, all lanes
  int64_t most_bytes() const { return most_; }  ///< at most, however much is fed; -1: no limit
  /// Tokens that can be fed until a fresh state must be made or feeding ends; INT64_MAX: no limit.
  int64_t room() const;
  int64_t capacity() const { return capacity_; }  ///< `room` of a fresh session
  int64_t refeeds() const { return refeeds_; }    ///< fresh states made at the limit so far
  const std::string& at_limit() const { return options_.at_limit; }
  std::string policy() const;  ///< what is kept of the past, and what happens at the limit, in words

  /// One safetensors file: state, last scores, recent tokens, and metadata (format, version, recipe, fingerprint of the
  /// model, position, checksum of all of it). It appears whole or not at all.
  void save(const std::string& path) const;
  /// Lanes are those of the file. Throws Error "[session] PATH: expected ...; found ..." for a file of another model,
  /// another recipe or another program, and for one that was cut or changed.
  static Session load(Model& model, const std::string& path, SessionOptions options = {});

  const State& state() const { return state_; }
  Model& model() const { return *model_; }

 private:
  void plan();
  void refeed();
  Tensor call(const Tensor& tokens, const Facts& facts);
  void remember(const Tensor& tokens, const Tensor& valid);
  void note_recent(const Tensor& tokens, const Tensor& valid);
  int64_t history_bytes() const;

  Model* model_;
  SessionOptions options_;
  Traits traits_;
  State state_;
  Tensor scores_;                              // [B, V]
  std::vector<std::vector<int64_t>> history_;  // newest tokens of each lane, where a refeed may come
  std::vector<std::vector<int64_t>> recent_;   // newest tokens of each lane, as many as are kept or up to twice that
  std::vector<int64_t> dropped_;               // tokens of each lane before the state's first
  int64_t keep_recent_ = 1024;
  int64_t newest_ = 0;  // Pass::newest
  int64_t capacity_ = INT64_MAX, most_ = -1, used_ = 0, refeeds_ = 0;
};

/// 16 hexadecimal digits of every tensor and all metadata of a session's file but the checksum itself.
std::string session_checksum(const TensorFile& file);

}  // namespace kinfolk
