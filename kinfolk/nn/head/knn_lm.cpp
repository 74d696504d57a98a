#include "kinfolk/nn/head/knn_lm.h"

#include <algorithm>

#include "kinfolk/core/errors.h"

namespace kinfolk {
namespace {

constexpr int64_t kGathered = int64_t{1} << 24;  // numbers of a block of gathered keys

}  // namespace

KnnLm::KnnLm(const Options& options, const Context& context) : options_(options), vocabulary_(context.size.vocabulary) {
  base_ = registry<Head>().create(options.base, context, context.path + ".base");
  register_module("base", base_);
  make_store(context.size.width, at::TensorOptions().device(context.like.device()));
}

KnnLm::KnnLm(const Options& options, std::shared_ptr<Head> base, const Size& size)
    : options_(options), vocabulary_(size.vocabulary), base_(std::move(base)) {
  register_module("base", base_);
  make_store(size.width, at::TensorOptions());
}

void KnnLm::make_store(int64_t width, const at::TensorOptions& device) {
  const Tensor keys = register_buffer("keys", at::empty({0, width}, device.dtype(at::kFloat)));
  const Tensor tokens = register_buffer("tokens", at::empty({0}, device.dtype(at::kLong)));
  retriever_ = std::make_unique<Retriever>(keys, tokens, options_.capacity, vocabulary_, "knn_lm");
}

void KnnLm::tune(const Tuned& tuned, const std::vector<std::string>& but) {
  const auto given = [&](const char* key) { return std::find(but.begin(), but.end(), key) != but.end(); };
  if (!given("k")) options_.k = tuned.k;
  if (!given("lambda")) options_.lambda = tuned.lambda;
  if (!given("temperature")) options_.temperature = tuned.temperature;
}

Tensor distribution_of(const Tensor& distance, const Tensor& tokens, double temperature, int64_t vocabulary) {
  const Tensor none = distance.isinf();
  const Tensor score = (-distance / temperature).masked_fill(none, -INFINITY);
  const Tensor some = none.logical_not().any(-1, true);
  const Tensor weight = score.masked_fill(some.logical_not(), 0).softmax(-1).masked_fill(none, 0);
  return at::zeros({distance.size(0), vocabulary}, distance.options()).scatter_add(1, tokens, weight);
}

Tensor KnnLm::neighbours_say(const Tensor& queries, const Tensor& place) {  // [M, D]
  const int64_t M = queries.size(0), D = queries.size(1);
  const auto found = retriever_->find(queries, options_.k, place);
  const int64_t k = found.index.size(1);
  // Distances of a search are float32 numbers without a gradient.
  const bool as_found = queries.scalar_type() == at::kFloat && !(queries.requires_grad() && at::GradMode::is_enabled());
  const int64_t block = std::max<int64_t>(1, kGathered / (k * D));
  std::vector<Tensor> parts;
  for (int64_t row = 0; row < M; row += block) {
    const int64_t rows = std::min(block, M - row);
    const Tensor index = found.index.narrow(0, row, rows);  // [R, k]
    Tensor distance = found.distance.narrow(0, row, rows);
    if (!as_found) {
      const Tensor near = retriever_->keys(index).to(queries.options());  // [R, k, D]
      distance = (queries.narrow(0, row, rows).unsqueeze(1) - near).square().sum(-1);
    }
    if (options_.metric == "l2") {
      // The root of 0 has no derivative: 0 is taken.
      const Tensor zero = distance.eq(0);
      distance = distance.masked_fill(zero, 1).sqrt().masked_fill(zero, 0);
    }
    distance = distance.masked_fill(index.lt(0), INFINITY);
    parts.push_back(distribution_of(distance, retriever_->tokens(index), options_.temperature, vocabulary_));
  }
  return parts.empty() ? at::zeros({M, vocabulary_}, queries.options()) : at::cat(parts);
}

Tensor join_distributions(const Tensor& scores, const Tensor& p_knn, double lambda) {
  const Tensor some = p_knn.sum(-1, true).gt(0);
  const Tensor log_base = scores.log_softmax(-1);
  const Tensor base = log_base + std::log1p(-lambda);
  const Tensor seen = p_knn.gt(0);
  // Where no neighbour says y only the base counts: log 0 never enters, nor its gradient.
  const Tensor near = at::where(seen, p_knn, at::ones_like(p_knn)).log() + std::log(lambda);
  return at::where(some, at::where(seen, at::logaddexp(base, near), base), log_base);
}

Tensor KnnLm::read(const Tensor& x, Pass& pass) {  // [B, L, D]
  const Tensor scores = base_->read(x, pass);      // [B, L, V]
  if (stored() == 0 || options_.lambda == 0) return scores;
  const Tensor flat = x.reshape({-1, x.size(-1)});
  const Tensor p_knn = neighbours_say(flat, places_of(pass, flat.size(0))).view(scores.sizes());
  return join_distributions(scores, p_knn, options_.lambda);
}

double KnnLm::flops(int64_t length) const {
  const auto* search = retriever_->search();
  const int64_t met = search && options_.search != "exact" ? std::max(options_.effort, options_.k) : stored();
  return base_->flops(length) + 2.0 * static_cast<double>(length) * static_cast<double>(met) *
                                    static_cast<double>(named_buffers(false)["keys"].size(1));
}

}  // namespace kinfolk
