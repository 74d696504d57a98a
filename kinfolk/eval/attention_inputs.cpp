#include "kinfolk/eval/attention_inputs.h"

#include <deque>

#include "kinfolk/core/errors.h"
#include "kinfolk/nn/memory/cache.h"
#include "kinfolk/nn/mixers/attention.h"
#include "kinfolk/pattern/pattern.h"

namespace kinfolk {
namespace {

/// Stands in the place of a memory for one call, and keeps what that was given.
struct Watcher : Memory {
  explicit Watcher(std::shared_ptr<Memory> inner) : inner(std::move(inner)) {}
  Traits traits() const override { return inner->traits(); }
  State start(int64_t batch, at::TensorOptions like) const override { return inner->start(batch, like); }
  Read meet(const Fresh& fresh, const Eyes& eyes, Pass& pass, State* state) override {
    seen = fresh;
    at = valid_positions(pass);
    return inner->meet(fresh, eyes, pass, state);
  }
  std::shared_ptr<Memory> inner;
  Fresh seen;
  Tensor at;  // int64 [B, L]
};

struct Watch {
  Watch(std::string place, Attention& attention)
      : place(std::move(place)), attention(attention), watcher(std::make_shared<Watcher>(attention.memory)) {
    attention.memory = watcher;
  }
  ~Watch() { attention.memory = watcher->inner; }
  Watch(const Watch&) = delete;
  Watch& operator=(const Watch&) = delete;
  std::string place;
  Attention& attention;
  std::shared_ptr<Watcher> watcher;
};

/// Why it is no plain attention; "": it is.
std::string why_not_plain(const Attention& attention) {
  const auto patterns = attention.patterns();
  for (const auto& pattern : patterns)
    if (pattern->text() != "causal") return text("its pattern is ", pattern->text());
  if (!attention.score.empty()) return "its scores are changed by a step";
  if (!std::dynamic_pointer_cast<Cache>(attention.memory)) return "it has a memory";
  for (const auto& step : attention.qk)
    if (step->stage(at::zeros({1, 0}, at::kLong)).defined()) return "its keys depend on who looks at them";
  return "";
}

AttentionInputs inputs_of(const Watch& watch) {
  const Fresh& seen = watch.watcher->seen;
  const auto queries = watch.attention.bands(seen.q, watch.watcher->at);
  const auto keys = watch.attention.key_bands(seen.k, watch.watcher->at, {});
  const auto width = static_cast<double>(seen.q.size(-1));
  const double scale = queries[0].scale == 0 ? 1 : queries[0].scale * std::sqrt(width);
  const int64_t shared = seen.q.size(1) / seen.k.size(1);
  const auto each = [&](const Tensor& t) { return t.repeat_interleave(shared, 1).to(at::kFloat).contiguous(); };
  return {watch.place, (queries[0].q * scale).to(at::kFloat).contiguous(), each(keys[0].k), each(seen.v)};
}

}  // namespace

WatchedAttention watch_attention(Model& model, const Tensor& tokens) {
  const at::NoGradGuard guard;
  WatchedAttention out;
  std::deque<Watch> watched;
  for (const auto& item : model.named_modules()) {
    const auto attention = std::dynamic_pointer_cast<Attention>(item.value());
    if (!attention) continue;
    if (std::dynamic_pointer_cast<Watcher>(attention->memory)) continue;  // shared, and met before
    if (const std::string why = why_not_plain(*attention); !why.empty()) {
      out.left_out.push_back(item.key() + ": " + why);
    } else {
      watched.emplace_back(item.key(), *attention);
    }
  }
  if (watched.empty()) return out;
  model.score({tokens, {}});
  for (const Watch& watch : watched) {
    if (!watch.watcher->seen.q.defined()) continue;
    if (watch.attention.bands(watch.watcher->seen.q, watch.watcher->at).size() > 1) {
      out.left_out.push_back(watch.place + ": its queries and keys depend on their distance");
    } else {
      out.layers.push_back(inputs_of(watch));
    }
  }
  return out;
}

}  // namespace kinfolk
