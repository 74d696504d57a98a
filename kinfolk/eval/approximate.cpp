#include "kinfolk/eval/approximate.h"

#include <map>

#include "kinfolk/core/errors.h"
#include "kinfolk/nn/feature/directions.h"
#include "kinfolk/nn/feature/positive.h"
#include "kinfolk/nn/feature/rectified.h"
#include "kinfolk/nn/feature/sin_cos.h"
#include "kinfolk/nn/length/linear.h"
#include "kinfolk/nn/length/windows.h"
#include "kinfolk/nn/mixers/feature_sums.h"
#include "kinfolk/nn/mixers/lsh_attention.h"
#include "kinfolk/ops/vq.h"
#include "kinfolk/pattern/pattern.h"

namespace kinfolk {
namespace {

Tensor unit(const Tensor& x) { return x * at::rsqrt(x.square().sum(-1, true).clamp_min(1e-24)); }

/// Exact attention under a pattern; until int64 [B, L] or undefined: keys before it alone; at int64 [B, S] or
/// undefined: where keys stand, -1 for those that are none.
Read look(const Tensor& q, const Tensor& k, const Tensor& v, const std::string& pattern, double scale = 0,
          const Tensor& until = {}, const Tensor& at = {}) {
  AttendPlan plan;
  plan.pattern = parse_pattern(pattern);
  const auto places = [&](const Tensor& t) { return at::arange(t.size(2), at::kLong).expand({t.size(0), t.size(2)}); };
  const Keys keys{.k = k, .v = v, .at = at.defined() ? at : places(k), .document = {}, .from = {}, .until = until};
  return attend({QueryBand{.q = q, .scale = scale}}, q, places(q), {}, {keys}, {{KeyBand{k}}}, plan);
}

/// What a branch over these heads is made with.
Context context_of(const AttentionInputs& in, uint64_t seed) {
  Context context;
  context.size.heads = context.heads.count = context.heads.groups = in.q.size(1);
  context.heads.width = in.q.size(3);
  context.size.width = in.q.size(1) * in.q.size(3);
  context.size.context = in.q.size(2);
  context.like = at::TensorOptions().dtype(at::kFloat);
  context.generator = at::detail::createCPUGenerator(seed);
  context.path = "approximate";
  return context;
}

/// Centres [H, n, d] of points [H, N, d]: Lloyd's rounds from random points; with n >= N the points themselves.
Tensor centres_of(const Tensor& points, int64_t n, uint64_t seed) {
  const int64_t N = points.size(1);
  if (n >= N) return points;
  auto generator = at::detail::createCPUGenerator(seed);
  Tensor centres = points.index_select(1, at::randperm(N, generator, at::kLong).narrow(0, 0, n));
  const Tensor lane = points.unsqueeze(0);
  for (int round = 0; round < 15; ++round) {
    const auto found = code_statistics(lane, nearest_code(lane, centres), n, {});
    const Tensor count = found.count.unsqueeze(-1);
    centres = at::where(count.gt(0), found.sum / count.clamp_min(1), centres);
  }
  return centres;
}

/// [B, H, L, d] -> [H, B L, d]
Tensor by_head(const Tensor& x) { return x.transpose(0, 1).flatten(1, 2); }

std::vector<int64_t> doubling(int64_t from, int64_t to) {
  std::vector<int64_t> out;
  for (int64_t n = from; n <= to; n *= 2) out.push_back(n);
  return out;
}

Tensor read_window(const AttentionInputs& in, int64_t keys, uint64_t) {
  return look(in.q, in.k, in.v, text("causal & window(", keys, ")")).out;
}

Tensor read_lsh(const AttentionInputs& in, int64_t rounds, uint64_t seed) {
  LshAttention::Options options;
  options.rounds = rounds;
  LshAttention branch(options, context_of(in, seed));
  const Batch batch;
  Pass pass{.batch = batch};
  return branch.read(in.q, in.v, pass);
}

/// Centroids among normalised queries and keys say who meets, each taking the L / clusters nearest of both; the scores
/// are the model's own.
Tensor read_routing(const AttentionInputs& in, int64_t clusters, uint64_t seed) {
  const int64_t length = in.q.size(2), width = in.q.size(3);
  const Tensor q = at::layer_norm(in.q, {width}), k = at::layer_norm(in.k, {width});
  const Tensor centroids = centres_of(at::cat({by_head(q), by_head(k)}, 1), clusters, seed);
  const auto affinities = [&](const Tensor& x) { return at::matmul(centroids, x.transpose(2, 3)); };  // [B, H, K, L]
  const auto plan = std::make_shared<GroupPlan>();
  top_groups(affinities(q), affinities(k), sequences_of(in.q.size(0), length, {}, {}),
             (length + clusters - 1) / clusters, *plan);
  return combine_groups(attend_groups(in.q, in.k, in.v, plan).out, *plan, true);
}

Tensor directions_of(const AttentionInputs& in, int64_t features, bool orthogonal, uint64_t seed) {
  return random_directions(in.q.size(1), features, in.q.size(3), orthogonal, at::detail::createCPUGenerator(seed))
      .to(at::kFloat);
}

Tensor read_sums(const Tensor& q, const Tensor& k, const Tensor& v, bool positive, double eps) {
  FeatureSums sums{.q = q, .k = k, .v = v};
  sums.positive = positive, sums.eps = eps;
  return read_features(sums, 64).out;
}

template <bool kOrthogonal, bool kAdds>
Tensor read_positive(const AttentionInputs& in, int64_t features, uint64_t seed) {
  const PositiveFeatures map{directions_of(in, features, kOrthogonal, seed), kAdds ? 1e-4 : 0};
  return read_sums(map.queries(in.q, false), map.keys(in.k), in.v, true, 1e-30);
}

Tensor read_sin_cos(const AttentionInputs& in, int64_t features, uint64_t seed) {
  const Tensor w = directions_of(in, features, true, seed);
  const double scale = std::pow(static_cast<double>(in.q.size(-1)), -0.25);
  const Tensor q = in.q * scale, k = in.k * scale;
  return read_sums(sin_cos_features(q, w), sin_cos_features(k, w) * at::exp(k.square().sum(-1, true) / 2), in.v, false,
                   1e-4);
}

Tensor read_relu(const AttentionInputs& in, int64_t features, uint64_t seed) {
  const Tensor w = directions_of(in, features, true, seed);
  return read_sums(rectified_features(in.q, w, 1e-3), rectified_features(in.k, w, 1e-3), in.v, true, 1e-30);
}

Tensor read_rfa(const AttentionInputs& in, int64_t features, uint64_t seed) {
  const Tensor w = directions_of(in, features, false, seed);
  return read_sums(sin_cos_features(unit(in.q), w), sin_cos_features(unit(in.k), w), in.v, false, 1e-2);
}

Tensor read_slots(const AttentionInputs& in, const LengthProjection& project) {
  return look(in.q, project.project(in.k, {}).rows, project.project(in.v, {}).rows, "full").out;
}

Tensor read_random_slots(const AttentionInputs& in, int64_t rank, uint64_t seed) {
  return read_slots(in, LinearLength({.rank = rank}, context_of(in, seed)));
}

Tensor read_mean_slots(const AttentionInputs& in, int64_t rank, uint64_t seed) {
  return read_slots(in, MeanLength({.ratio = (in.q.size(2) + rank - 1) / rank}, context_of(in, seed)));
}

/// The tokens whose keys have one centre become one slot: means of their keys, and of their values.
Tensor read_near_slots(const AttentionInputs& in, int64_t rank, uint64_t seed) {
  const auto apart = [](const Tensor& t) { return t.flatten(0, 1).unsqueeze(0); };  // [1, B H, L, d], as if all heads
  const Tensor k = apart(in.k), centres = centres_of(k[0], rank, seed), code = nearest_code(k, centres);
  const auto keys = code_statistics(k, code, centres.size(1), {}),
             values = code_statistics(apart(in.v), code, centres.size(1), {});
  const Tensor many = keys.count.unsqueeze(-1).clamp_min(1), q = in.q.flatten(0, 1).unsqueeze(1);  // [B H, 1, L, d]
  const Tensor filled = at::arange(centres.size(1), at::kLong).masked_fill(keys.count.eq(0), -1);  // [B H, S]
  return look(q, (keys.sum / many).unsqueeze(1), (values.sum / many).unsqueeze(1), "full", 0, {}, filled)
      .out.view(in.q.sizes());
}

Tensor read_vq(const AttentionInputs& in, int64_t codes, uint64_t seed) {
  const Tensor words = centres_of(by_head(in.k), codes, seed);
  return look(in.q, codewords(words, nearest_code(in.k, words)), in.v, "causal").out;
}

std::vector<int64_t> features(int64_t) { return doubling(16, 512); }
std::vector<int64_t> slots(int64_t length) {
  auto out = doubling(16, length);
  if (out.empty() || out.back() != length) out.push_back(length);
  return out;
}

ErrorOver over(const std::vector<Tensor>& layers) {
  ErrorOver out;
  for (const Tensor& layer : layers) out.by_layer.push_back(layer.mean().item<double>());
  const Tensor all = at::cat(layers).flatten();
  out.mean = all.mean().item<double>();
  out.median = all.median().item<double>();
  out.spread = all.numel() > 1 ? all.std().item<double>() : 0;
  return out;
}

}  // namespace

Tensor exact_attention(const AttentionInputs& in, ExactForm form) {
  if (form == ExactForm::whole) return look(in.q, in.k, in.v, "full").out;
  if (form == ExactForm::unit) return look(unit(in.q), unit(in.k), in.v, "causal", 1).out;
  if (form == ExactForm::causal) return look(in.q, in.k, in.v, "causal").out;
  if (form == ExactForm::alike) return look(at::zeros_like(in.q), in.k, in.v, "causal").out;
  const Tensor own = at::arange(in.q.size(2), at::kLong).expand({in.q.size(0), in.q.size(2)});
  const Read read = look(in.q, unit(in.q), in.v, "causal", 0, own);
  return at::where(read.lse.isneginf().unsqueeze(-1), in.v, read.out);
}

std::string exact_words(ExactForm form) {
  switch (form) {
    case ExactForm::causal:
      return "the model's own";
    case ExactForm::shared:
      return "keys are the queries' directions";
    case ExactForm::unit:
      return "queries and keys of length 1";
    case ExactForm::alike:
      return "all keys alike";
    case ExactForm::whole:
      return "the model's own, later tokens too";
  }
  return "";
}

const std::vector<Approximation>& approximations() {
  static const std::vector<Approximation> all{
      {"window", "the newest keys alone", "keys", ExactForm::causal, slots, read_window},
      {"lsh", "keys of the same bucket of a random hash, chunks of 64 (Reformer)", "rounds", ExactForm::shared,
       [](int64_t) { return doubling(1, 16); }, read_lsh},
      {"routing", "keys of the same k-means centroid, which takes L / clusters tokens (Routing Transformer)",
       "clusters", ExactForm::causal, [](int64_t length) { return doubling(2, std::max<int64_t>(2, length / 8)); },
       read_routing},
      {"positive", "positive random features, orthogonal (Performer)", "features", ExactForm::causal, features,
       read_positive<true, true>},
      {"no_eps", "the same without the 1e-4 that is added to each feature", "features", ExactForm::causal, features,
       read_positive<true, false>},
      {"independent", "positive random features, independent (Performer)", "features", ExactForm::causal, features,
       read_positive<false, true>},
      {"sin_cos", "trigonometric random features, orthogonal (Performer)", "features", ExactForm::causal, features,
       read_sin_cos},
      {"relu", "rectified random features, a kernel of its own (Performer)", "features", ExactForm::causal, features,
       read_relu},
      {"rfa", "trigonometric random features of unit vectors (RFA)", "features", ExactForm::unit, features, read_rfa},
      {"random", "keys and values summed into slots by one random matrix (Linformer, untrained)", "rank",
       ExactForm::whole, slots, read_random_slots},
      {"mean", "keys and values averaged over neighbours (Linformer, mean-pool)", "rank", ExactForm::whole, slots,
       read_mean_slots},
      {"near", "keys and values averaged over like keys: no fixed matrix, a bound for one", "rank", ExactForm::whole,
       slots, read_near_slots},
      {"vq", "each key by the nearest of k-means codes (Transformer-VQ)", "codes", ExactForm::causal, features,
       read_vq}};
  return all;
}

Tensor relative_error(const Tensor& a, const Tensor& b) {
  const auto size = [](const Tensor& t) { return t.to(at::kDouble).square().sum({2, 3}).sqrt(); };
  return size(a - b) / size(b).clamp_min(1e-300);
}

Approximations measure_approximations(const std::vector<AttentionInputs>& layers, const std::vector<std::string>& names,
                                      uint64_t seed, const std::function<void(double)>& progress) {
  const at::NoGradGuard guard;
  if (layers.empty()) fail("[approximate] expected layers of plain attention; found none");
  std::map<ExactForm, std::vector<Tensor>> exact;  // by layer
  const auto of_form = [&](ExactForm form) -> const std::vector<Tensor>& {
    auto& made = exact[form];
    if (made.empty())
      for (const auto& layer : layers) made.push_back(exact_attention(layer, form));
    return made;
  };
  const auto errors = [&](const std::vector<Tensor>& reads, ExactForm form) {
    std::vector<Tensor> out;
    for (size_t n = 0; n < layers.size(); ++n) out.push_back(relative_error(reads[n], of_form(form)[n]));
    return over(out);
  };
  Approximations found;
  std::vector<const Approximation*> wanted;
  for (const auto& each : approximations())
    if (names.empty() || std::find(names.begin(), names.end(), each.name) != names.end()) wanted.push_back(&each);
  for (size_t n = 0; n < wanted.size(); ++n) {
    const Approximation& of = *wanted[n];
    const auto values = of.values(layers[0].q.size(2));
    for (size_t m = 0; m < values.size(); ++m) {
      std::vector<Tensor> reads;
      for (size_t l = 0; l < layers.size(); ++l) {
        reads.push_back(of.read(layers[l], values[m], seed * 0x9E3779B97F4A7C15ull + l + 1));
      }
      ApproximationRow row{&of, values[m], errors(reads, of.form), {}};
      if (of.form != ExactForm::whole) row.causal = errors(reads, ExactForm::causal);
      found.rows.push_back(std::move(row));
      const double part = static_cast<double>(m + 1) / static_cast<double>(values.size());
      if (progress) progress((static_cast<double>(n) + part) / static_cast<double>(wanted.size()));
    }
  }
  of_form(ExactForm::alike);
  for (const ExactForm form : {ExactForm::alike, ExactForm::shared, ExactForm::unit})
    if (exact.count(form)) found.forms.push_back({form, errors(exact.at(form), ExactForm::causal)});
  return found;
}

}  // namespace kinfolk
