#include "kinfolk/nn/retrieve/retriever.h"

#include <algorithm>

#include "kinfolk/core/errors.h"

namespace kinfolk {

Retriever::Retriever(Tensor keys, Tensor tokens, int64_t capacity, int64_t vocabulary, std::string who)
    : keys_(std::move(keys)),
      tokens_(std::move(tokens)),
      capacity_(capacity),
      vocabulary_(vocabulary),
      who_(std::move(who)) {}

int64_t Retriever::stored() const { return store_ ? store_->size() : std::min(capacity_, keys_.size(0) + new_count_); }

void Retriever::forget() {
  new_keys_.clear();
  new_tokens_.clear();
  new_count_ = 0;
  keys_.set_data(at::empty({0, keys_.size(1)}, keys_.options()));
  tokens_.set_data(at::empty({0}, tokens_.options()));
  store_.reset();
  search_.reset();
  exclude({});
}

void Retriever::attach(std::shared_ptr<const Datastore> store, std::unique_ptr<Search> search) {
  forget();
  store_ = std::move(store);
  search_ = std::move(search);
}

void Retriever::remember(const Tensor& x, const Tensor& target) {
  if (x.dim() != 2 || x.size(1) != keys_.size(1) || target.dim() != 1 || target.size(0) != x.size(0)) {
    fail("[head.", who_, "] expected hidden states [N, ", keys_.size(1), "] and tokens [N]; found ", x.sizes(), " and ",
         target.sizes());
  }
  if (store_) fail("[head.", who_, "] expected to remember in memory; found a datastore, which is added to by command");
  at::NoGradGuard guard;
  const Tensor wanted = target.ge(0);
  const Tensor tokens = target.detach().masked_select(wanted).to(tokens_.options());
  if (tokens.numel() == 0) return;
  const int64_t largest = tokens.max().item<int64_t>();
  if (largest >= vocabulary_) {
    fail("[head.", who_, "] expected tokens below ", vocabulary_, " to remember; found ", largest);
  }
  new_keys_.push_back(x.detach().index({wanted}).to(keys_.options()));
  new_tokens_.push_back(tokens);
  new_count_ += tokens.numel();
  if (new_count_ >= capacity_) settle();
}

void Retriever::settle() {
  if (!new_keys_.empty()) {
    new_keys_.insert(new_keys_.begin(), keys_);
    new_tokens_.insert(new_tokens_.begin(), tokens_);
    const int64_t total = keys_.size(0) + new_count_, kept = std::min(total, capacity_);
    keys_.set_data(at::cat(new_keys_).narrow(0, total - kept, kept).clone());
    tokens_.set_data(at::cat(new_tokens_).narrow(0, total - kept, kept).clone());
    new_keys_.clear();
    new_tokens_.clear();
    new_count_ = 0;
  }
  // A checkpoint may have filled the tensors since.
  const std::pair<const void*, uint32_t> now{keys_.const_data_ptr(), keys_._version()};
  if (!squares_.defined() || squares_.size(0) != keys_.size(0) || now != squared_) {
    squares_ = keys_.square().sum(-1);
    squared_ = now;
  }
}

void Retriever::exclude(std::vector<OwnRun> runs) {
  own_ = std::move(runs);
  // The most that one place is in: a run counts from its first place to the one after its last.
  std::vector<std::pair<int64_t, int>> borders;
  for (const auto& run : own_) {
    borders.emplace_back(run.place, 1);
    borders.emplace_back(run.place + run.length, -1);
  }
  std::sort(borders.begin(), borders.end());
  most_own_ = 0;
  int64_t open = 0;
  for (const auto& [place, change] : borders) most_own_ = std::max(most_own_, open += change);
}

std::vector<int64_t> Retriever::own_of(int64_t place) const {
  std::vector<int64_t> out;
  for (const auto& run : own_)
    if (place >= run.place && place < run.place + run.length) out.push_back(run.entry + place - run.place);
  return out;
}

Retriever::Found Retriever::find(const Tensor& queries, int64_t k, const Tensor& place) {
  const bool leaves_out = place.defined() && most_own_ > 0;
  const int64_t M = queries.size(0), N = stored(), most = std::min(k, N);
  if (N == 0) fail("[head.", who_, "] expected a datastore; found an empty one");
  const int64_t asked = std::min(N, most + (leaves_out ? most_own_ : 0));
  const Tensor plain = queries.detach().to(at::kFloat);
  Nearest found;
  if (search_) {
    found = search_->nearest(plain, asked);
  } else {
    settle();
    found = nearest(plain, keys_, asked, squares_);
  }
  if (!leaves_out) return {found.index, found.distance};
  const Tensor places = place.to(at::kCPU, at::kLong).contiguous();
  Found out{at::full({M, most}, -1, at::kLong),
            at::full({M, most}, std::numeric_limits<float>::infinity(), at::kFloat)};
  const auto* where = places.const_data_ptr<int64_t>();
  const auto* index = found.index.const_data_ptr<int64_t>();
  const auto* distance = found.distance.const_data_ptr<float>();
  auto* kept = out.index.mutable_data_ptr<int64_t>();
  auto* kept_distance = out.distance.mutable_data_ptr<float>();
  for (int64_t m = 0; m < M; ++m) {
    const auto own = own_of(where[m]);
    for (int64_t i = 0, n = 0; i < asked && n < most; ++i) {
      const int64_t entry = index[m * asked + i];
      if (entry < 0 || std::find(own.begin(), own.end(), entry) != own.end()) continue;
      kept[m * most + n] = entry;
      kept_distance[m * most + n++] = distance[m * asked + i];
    }
  }
  return out;
}

Tensor Retriever::keys(const Tensor& index) const {
  const Tensor some = index.clamp_min(0);
  if (store_) return store_->keys(some);
  std::vector<int64_t> sizes(index.sizes().begin(), index.sizes().end());
  sizes.push_back(keys_.size(1));
  return keys_.index_select(0, some.flatten()).view(sizes);
}

Tensor Retriever::tokens(const Tensor& index) const {
  const Tensor some = index.clamp_min(0);
  return store_ ? store_->tokens(some) : tokens_.index_select(0, some.flatten()).view(index.sizes());
}

Tensor places_of(const Pass& pass, int64_t rows) {
  const Tensor place = pass.batch.fact(kPlace);
  return place.defined() && place.numel() == rows ? place.flatten() : Tensor();
}

void attach_store(Model& model, std::shared_ptr<const Datastore> store, const std::vector<std::string>& set) {
  auto* head = dynamic_cast<Retrieves*>(&model.head());
  if (!head) refuse("[datastore] expected a head that retrieves (knn_lm, spalm); found another");
  store->check(model);
  if (store->size() == 0) fail("[datastore] ", store->folder(), ": expected entries; found none");
  if (store->about().tuned.k > 0) head->tune(store->about().tuned, set);
  auto search = open_search(head->search_kind(), store, head->search_effort());
  head->retriever().attach(std::move(store), std::move(search));
}

}  // namespace kinfolk
