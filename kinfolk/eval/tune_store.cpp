#include "kinfolk/eval/tune_store.h"

#include <numbers>

#include "kinfolk/core/errors.h"
#include "kinfolk/nn/retrieve/retriever.h"

namespace kinfolk {
namespace {

/// What is known of each scored position.
struct Looked {
  Tensor p_base;    // [M] of the byte that follows
  Tensor distance;  // [M, K] ascending; infinite where nothing was found
  Tensor right;     // [M, K] did this byte follow there?
};

Looked look_up(Model& model, Retriever& retriever, const Bytes& text, const std::vector<int64_t>& starts,
               int64_t length, int64_t k, const TuneOptions& options) {
  Looked out;
  std::vector<Tensor> p, distance, right;
  constexpr int64_t kLanes = 8;
  for (size_t w = 0; w < starts.size(); w += kLanes) {
    const std::vector<int64_t> some(starts.begin() + static_cast<int64_t>(w),
                                    starts.begin() + static_cast<int64_t>(std::min(starts.size(), w + kLanes)));
    const Tensor tokens = gather_tokens(text, some, 0, length + 1);
    const Batch batch{tokens.narrow(1, 0, length), {}};
    Pass pass{batch};
    const Tensor hidden = model.hidden(pass);  // [B, L, D]
    const Tensor target = tokens.narrow(1, 1, length).reshape({-1, 1});
    const Tensor scores = model.head().read(hidden, pass).to(at::kFloat).flatten(0, 1);  // [M, V]
    p.push_back(scores.softmax(-1).gather(-1, target).squeeze(-1).to(at::kDouble));
    const Tensor place = (at::tensor(some).unsqueeze(1) + at::arange(length)).flatten();
    const auto found = retriever.find(hidden.flatten(0, 1), k, place);
    const Tensor near = found.distance.to(at::kDouble);
    distance.push_back(options.metric == "l2" ? near.sqrt() : near);
    right.push_back(retriever.tokens(found.index).eq(target).to(at::kDouble));
    if (options.progress) options.progress(static_cast<double>(w + some.size()) / static_cast<double>(starts.size()));
  }
  return {at::cat(p), at::cat(distance), at::cat(right)};
}

/// Mean over windows, and of each.
Tensor bits_of(const Tensor& p, int64_t length) {
  return (p.clamp_min(1e-30).log() / -std::numbers::ln2).view({-1, length}).mean(1);  // [windows]
}

template <class Same>
std::vector<TunePoint> best_of(const std::vector<TunePoint>& tried, Same same) {
  std::vector<TunePoint> out;
  for (const auto& point : tried) {
    const auto place = std::find_if(out.begin(), out.end(), [&](const TunePoint& one) { return same(one, point); });
    if (place == out.end()) {
      out.push_back(point);
    } else if (point.bits < place->bits) {
      *place = point;
    }
  }
  return out;
}

/// Two digits, since nobody types more.
double rounded(double value) {
  const double unit = std::pow(10, std::floor(std::log10(value)) - 1);
  return std::round(value / unit) * unit;
}

}  // namespace

std::vector<TunePoint> TuneResult::by_lambda() const {
  return best_of(tried, [](const TunePoint& a, const TunePoint& b) { return a.lambda == b.lambda; });
}
std::vector<TunePoint> TuneResult::by_k() const {
  return best_of(tried, [](const TunePoint& a, const TunePoint& b) { return a.k == b.k; });
}
std::vector<TunePoint> TuneResult::by_temperature() const {
  return best_of(tried, [](const TunePoint& a, const TunePoint& b) { return a.temperature == b.temperature; });
}

TuneResult tune_store(Model& model, const Datastore& store, const Search& search, const Bytes& text,
                      const TuneOptions& options) {
  if (store.size() == 0) fail("[datastore] ", store.folder(), ": expected entries; found none");
  if (options.ks.empty() || options.lambdas.empty()) refuse("[tune] expected values of k and lambda; found none");
  const int64_t length = std::min(model.size().context, static_cast<int64_t>(text.size()) - 1);
  check_scorable(model, text, {std::max<int64_t>(length, 1)}, "auto");
  const at::NoGradGuard guard;
  const bool training = model.is_training();
  model.eval();
  const auto size = static_cast<int64_t>(text.size());
  const int64_t windows = std::max<int64_t>(1, std::min(options.tokens / length, size / (length + 1)));
  std::vector<int64_t> starts;
  for (int64_t w = 0; w < windows; ++w) starts.push_back(windows > 1 ? (size - length - 1) / (windows - 1) * w : 0);

  // The search is lent to a retriever of our own: the head's stays empty, so that it scores alone.
  struct Lent : Search {
    const Search& search;
    explicit Lent(const Search& s) : search(s) {}
    Nearest nearest(const Tensor& queries, int64_t k) const override { return search.nearest(queries, k); }
    std::string words() const override { return search.words(); }
  };
  Retriever retriever(at::empty({0, store.width()}), at::empty({0}, at::kLong), 1, store.about().vocabulary, "tune");
  retriever.attach(std::shared_ptr<const Datastore>(&store, [](const Datastore*) {}), std::make_unique<Lent>(search));
  retriever.exclude(own_entries(store, text));

  const int64_t most = std::min(store.size(), *std::max_element(options.ks.begin(), options.ks.end()));
  const Looked looked = look_up(model, retriever, text, starts, length, most, options);
  model.train(training);
  TuneResult out;
  out.tokens = windows * length;
  const Tensor before = bits_of(looked.p_base, length);
  out.before = before.mean().item<double>();
  const Tensor nearest = looked.distance.select(1, 0);
  const Tensor some = nearest.isfinite();
  out.distance = some.any().item<bool>() ? nearest.masked_select(some).mean().item<double>() : 1;
  std::vector<double> temperatures = options.temperatures;
  for (int power = -6; options.temperatures.empty() && power <= 2; ++power) {
    temperatures.push_back(rounded(std::max(1e-6, out.distance) * std::pow(2, power)));
  }
  Tensor best_bits = before;
  out.best = {std::min(most, options.ks.front()), temperatures.front(), 0, out.before};
  std::vector<int64_t> ks;
  for (const int64_t k : options.ks)
    if (const int64_t cut = std::min(k, most); std::find(ks.begin(), ks.end(), cut) == ks.end()) ks.push_back(cut);
  for (const double temperature : temperatures) {
    // Weights relative to the nearest entry, summed over the first k of them.
    const Tensor shifted = (looked.distance - nearest.unsqueeze(1)) / -temperature;
    const Tensor weight = shifted.exp().masked_fill(looked.distance.isinf(), 0);  // [M, K]
    const Tensor all = weight.cumsum(1), right = (weight * looked.right).cumsum(1);
    for (const int64_t k : ks) {
      const Tensor p_knn = right.select(1, k - 1) / all.select(1, k - 1).clamp_min(1e-300);
      for (const double lambda : options.lambdas) {
        const Tensor p = at::where(some, lambda * p_knn + (1 - lambda) * looked.p_base, looked.p_base);
        const Tensor bits = bits_of(p, length);
        const TunePoint point{k, temperature, lambda, bits.mean().item<double>()};
        out.tried.push_back(point);
        if (point.bits < out.best.bits) out.best = point, best_bits = bits;
      }
    }
  }
  const Tensor gain = (before - best_bits).contiguous();
  const auto* each = gain.const_data_ptr<double>();
  out.gain_error = mean_and_error({each, each + gain.numel()}).second;
  return out;
}

}  // namespace kinfolk
