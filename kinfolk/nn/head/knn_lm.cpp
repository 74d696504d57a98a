#include "kinfolk/nn/head/knn_lm.h"

#include "kinfolk/core/errors.h"
#include "kinfolk/ops/nearest.h"

namespace kinfolk {
namespace {

constexpr int64_t kGathered = int64_t{1} << 24;  // numbers of a block of gathered keys

}  // namespace

KnnLm::KnnLm(const Options& options, const Context& context) : options_(options), vocabulary_(context.size.vocabulary) {
  base_ = registry<Head>().create(options.base, context, context.path + ".base");
  register_module("base", base_);
  const auto device = at::TensorOptions().device(context.like.device());
  keys_ = register_buffer("keys", at::empty({0, context.size.width}, device.dtype(at::kFloat)));
  tokens_ = register_buffer("tokens", at::empty({0}, device.dtype(at::kLong)));
}

int64_t KnnLm::stored() const { return std::min(options_.capacity, keys_.size(0) + new_count_); }

void KnnLm::forget() {
  new_keys_.clear();
  new_tokens_.clear();
  new_count_ = 0;
  keys_.set_data(at::empty({0, keys_.size(1)}, keys_.options()));
  tokens_.set_data(at::empty({0}, tokens_.options()));
}

void KnnLm::remember(const Tensor& x, const Tensor& target) {
  if (x.dim() != 2 || x.size(1) != keys_.size(1) || target.dim() != 1 || target.size(0) != x.size(0)) {
    fail("[head.knn_lm] expected hidden states [N, ", keys_.size(1), "] and tokens [N]; found ", x.sizes(), " and ",
         target.sizes());
  }
  at::NoGradGuard guard;
  const Tensor wanted = target.ge(0);
  const Tensor tokens = target.detach().masked_select(wanted).to(tokens_.options());
  if (tokens.numel() == 0) return;
  const int64_t largest = tokens.max().item<int64_t>();
  if (largest >= vocabulary_) {
    fail("[head.knn_lm] expected tokens below ", vocabulary_, " to remember; found ", largest);
  }
  new_keys_.push_back(x.detach().index({wanted}).to(keys_.options()));
  new_tokens_.push_back(tokens);
  new_count_ += tokens.numel();
  if (new_count_ >= options_.capacity) settle();
}

void KnnLm::settle() {
  if (!new_keys_.empty()) {
    new_keys_.insert(new_keys_.begin(), keys_);
    new_tokens_.insert(new_tokens_.begin(), tokens_);
    const int64_t total = keys_.size(0) + new_count_, kept = std::min(total, options_.capacity);
    keys_.set_data(at::cat(new_keys_).narrow(0, total - kept, kept).clone());
    tokens_.set_data(at::cat(new_tokens_).narrow(0, total - kept, kept).clone());
    new_keys_.clear();
    new_tokens_.clear();
    new_count_ = 0;
  }
  // A checkpoint may have filled the buffers since.
  const std::pair<const void*, uint32_t> now{keys_.const_data_ptr(), keys_._version()};
  if (!squares_.defined() || squares_.size(0) != keys_.size(0) || now != squared_) {
    squares_ = keys_.square().sum(-1);
    squared_ = now;
  }
}

Tensor KnnLm::neighbours_say(const Tensor& queries) {  // [M, D]
  settle();
  const int64_t M = queries.size(0), k = std::min(options_.k, keys_.size(0));
  if (k == 0) fail("[head.knn_lm] expected a datastore; found an empty one");
  const Nearest found = nearest(queries, keys_, k, squares_);
  const Tensor keys = keys_.to(queries.scalar_type());
  const int64_t block = std::max<int64_t>(1, kGathered / (k * keys.size(1)));
  std::vector<Tensor> parts;
  for (int64_t row = 0; row < M; row += block) {
    const int64_t rows = std::min(block, M - row);
    const Tensor index = found.index.narrow(0, row, rows);  // [R, k]
    const Tensor near = keys.index_select(0, index.clamp_min(0).reshape(-1)).view({rows, k, -1});
    Tensor distance = (queries.narrow(0, row, rows).unsqueeze(1) - near).square().sum(-1);  // [R, k]
    if (options_.metric == "l2") {
      // The root of 0 has no derivative: 0 is taken.
      const Tensor zero = distance.eq(0);
      distance = distance.masked_fill(zero, 1).sqrt().masked_fill(zero, 0);
    }
    const Tensor score = (-distance / options_.temperature).masked_fill(index.lt(0), -INFINITY);
    const Tensor word = tokens_.index_select(0, index.clamp_min(0).reshape(-1)).view({rows, k});
    parts.push_back(at::zeros({rows, vocabulary_}, queries.options()).scatter_add(1, word, score.softmax(-1)));
  }
  return parts.empty() ? at::zeros({M, vocabulary_}, queries.options()) : at::cat(parts);
}

Tensor KnnLm::read(const Tensor& x, Pass& pass) {  // [B, L, D]
  const Tensor scores = base_->read(x, pass);      // [B, L, V]
  if (stored() == 0 || options_.lambda == 0) return scores;
  const Tensor p_knn = neighbours_say(x.reshape({-1, x.size(-1)})).view(scores.sizes());
  const Tensor base = scores.log_softmax(-1) + std::log1p(-options_.lambda);
  const Tensor seen = p_knn.gt(0);
  // Where no neighbour says y only the base counts: log 0 never enters, nor its gradient.
  const Tensor near = at::where(seen, p_knn, at::ones_like(p_knn)).log() + std::log(options_.lambda);
  return at::where(seen, at::logaddexp(base, near), base);
}

double KnnLm::flops(int64_t length) const {
  return base_->flops(length) +
         2.0 * static_cast<double>(length) * static_cast<double>(stored()) * static_cast<double>(keys_.size(1));
}

}  // namespace kinfolk
