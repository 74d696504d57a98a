#include "kinfolk/nn/memory/segment.h"

#include "kinfolk/nn/memory/cache.h"
#include "kinfolk/nn/memory/newest.h"

namespace kinfolk {
namespace {

constexpr auto kInputs = "x", kKeys = "k", kValues = "v", kAt = "at", kDocument = "document";

/// The smallest range [first, second) of columns that holds every true of bool [B, S]; [S, S) when there is none.
std::pair<int64_t, int64_t> filled_columns(const Tensor& wanted) {
  const Tensor columns = wanted.any(0).nonzero();
  if (columns.numel() == 0) return {wanted.size(1), wanted.size(1)};
  return {columns[0].item<int64_t>(), columns[-1].item<int64_t>() + 1};
}

/// Columns [from, to) of keys.
Keys columns(const Keys& keys, int64_t from, int64_t to) {
  Keys out = keys;
  out.at = keys.at.slice(1, from, to);
  if (keys.document.defined()) out.document = keys.document.slice(1, from, to);
  return out;
}

}  // namespace

Segment::Segment(const Options& options, const Context& context)
    : options_(options), heads_(context.heads), width_(context.size.width) {
  if (!heads_.causal) {
    fail("[", context.path, "] expected a causal pattern with a segment memory; found one that sees the future");
  }
  if (!heads_.relative && options.start == "zeros") {
    fail("[", context.path, ".start] expected empty with a pattern that looks at positions themselves; found zeros, ",
         "whose keys stand before position 0");
  }
  if (keeps_keys() && options.start == "zeros") {
    fail("[", context.path, ".start] expected empty with keep keys, which has no inputs of zeros; found zeros");
  }
  capacity_ = options.reach == "same" ? options.memory - 1 : options.memory + options.segment - 1;
  if (heads_.horizon >= 0) capacity_ = std::min(capacity_, std::max<int64_t>(heads_.horizon - 1, 0));
}

Traits Segment::traits() const {
  Traits traits;
  traits.bounded = true;
  traits.carries = true;
  // Segments begin at multiples of N, and rows of zeros before position 0.
  traits.relative = options_.reach == "same" && options_.start == "empty";
  return traits;
}

int64_t Segment::reach() const {
  const int64_t most = options_.memory + (options_.reach == "same" ? 0 : options_.segment);
  return heads_.horizon >= 0 ? std::min(most, heads_.horizon) : most;
}

int64_t Segment::seen(int64_t position) const {
  const int64_t most = options_.reach == "same" ? options_.memory : position % options_.segment + 1 + options_.memory;
  return options_.start == "zeros" ? most : std::min(most, position + 1);
}

std::string Segment::keeps() const {
  const std::string what = keeps_keys() ? "the keys of " : "the inputs of ";
  if (options_.reach == "same" || capacity_ < options_.memory + options_.segment - 1) {
    return what + text("the newest ", reach(), " tokens");
  }
  return what + text("a segment of ", options_.segment, " tokens and the ", options_.memory, " before it");
}

State Segment::start(int64_t batch, at::TensorOptions like) const {
  const auto whole = like.dtype(at::kLong);
  State state;
  if (keeps_keys()) {
    for (const char* name : {kKeys, kValues})
      state.tensors[name] = at::zeros({batch, heads_.groups, capacity_, heads_.width}, like);
  } else {
    state.tensors[kInputs] = at::zeros({batch, capacity_, width_}, like);
  }
  Tensor at = at::full({capacity_}, -1, whole);
  if (options_.start == "zeros") at = (at::arange(capacity_, whole) + (options_.memory - capacity_)).clamp_min(-1);
  state.tensors[kAt] = at.repeat({batch, 1});
  state.tensors[kDocument] = at::zeros({batch, capacity_}, whole);
  return state;
}

std::string Segment::truncate(State& state, int64_t lane, int64_t position, int64_t) const {
  const int64_t shift = options_.start == "zeros" ? options_.memory : 0;
  int64_t from = options_.reach == "same" ? position + 1 : position / options_.segment * options_.segment;
  from -= options_.memory;
  if (heads_.horizon >= 0) from = std::max(from, position - heads_.horizon + 1);
  const Tensor at = state.tensors.at(kAt);
  if (auto why = missing(at, lane, from + shift, position + shift); !why.empty()) return why;
  const Tensor left = emptied(at, lane, position + shift);
  const Newest order(left, capacity_, true);
  for (auto& [name, tensor] : state.tensors)
    if (name != kAt && name != kDocument) tensor = order.keep(tensor, keeps_keys() ? 2 : 1);
  state.tensors[kDocument] = order.keep(state.tensors.at(kDocument), 1);
  state.tensors[kAt] = order.keep(left, 1);
  return "";
}

Read Segment::meet(const Fresh& fresh, const Eyes& eyes, Pass& pass, State* state) {
  const int64_t shift = options_.start == "zeros" ? options_.memory : 0;
  State whole;
  if (!state) state = &whole;
  if (state->tensors.empty()) *state = start(fresh.x.size(0), fresh.x.options());
  auto& kept = state->tensors;

  const Tensor position = valid_positions(pass);
  const auto joined = [&](const char* name, const Tensor& own, int64_t dim) {
    return at::cat({kept.at(name).to(own.scalar_type()), own}, dim);
  };
  Tensor x, k, v;
  if (keeps_keys()) {
    k = joined(kKeys, fresh.k, 2), v = joined(kValues, fresh.v, 2);  // [B, G, C + L, d]
  } else {
    x = joined(kInputs, fresh.x, 1);  // [B, C + L, D]
  }
  Keys all;
  all.at = at::cat({kept.at(kAt), at::where(position.lt(0), position, position + shift)}, 1);  // [B, C + L]
  all.document = at::cat({kept.at(kDocument), documents(pass)}, 1);
  if (state != &whole) {
    const Newest newest(all.at, capacity_, pass.valid.defined() && !pass.valid.all().item<bool>());
    const auto keep = [&](const char* name, const Tensor& all, int64_t dim) {
      kept[name] = newest.keep(all, dim).to(kept.at(name).scalar_type());
    };
    if (keeps_keys()) {
      keep(kKeys, k, 2), keep(kValues, v, 2);
    } else {
      keep(kInputs, x, 1);
    }
    kept[kAt] = newest.keep(all.at, 1);
    kept[kDocument] = newest.keep(all.document, 1);
  }
  if (!pass.document.defined()) all.document = Tensor();

  const Tensor begin = pass.position.div(options_.segment, "floor") * options_.segment + shift;  // [B, L] s
  all.from = options_.reach == "same" ? pass.position + (shift + 1 - options_.memory) : begin - options_.memory;
  const auto look = [&](std::vector<Keys> keys) { return eyes.look(fresh.q, std::move(keys), {.shift = shift}); };

  /// Columns [first, C + L): kept inputs are projected, the call's own keys are there already.
  const int64_t width = all.at.size(1);
  const auto with_fresh = [&](int64_t first) {
    Keys keys = columns(all, first, width);
    if (keeps_keys()) {
      keys.k = k.slice(2, first), keys.v = v.slice(2, first);
      return keys;
    }
    keys.k = fresh.k;
    keys.v = fresh.v;
    if (first < capacity_) {
      const Eyes::KeyValue old = eyes.project(x.narrow(1, first, capacity_ - first));
      keys.k = at::cat({old.k, fresh.k}, 2);  // [B, G, C - first + L, d]
      keys.v = at::cat({old.v, fresh.v}, 2);
    }
    return keys;
  };
  const Tensor seen = all.at.ge(all.from.amin(1, true).clamp_min(0));  // by some query of the lane, or newer
  // Not in training, where recomputation must drop the same weights with a graph and without.
  if (!at::GradMode::is_enabled() && !is_training()) {
    return look({with_fresh(filled_columns(seen.narrow(1, 0, capacity_)).first)});
  }

  const Tensor own = seen.logical_and(all.at.ge(begin.amin(1, true)));
  Keys live = with_fresh(filled_columns(own.narrow(1, 0, capacity_)).first);
  live.from = at::maximum(begin, all.from);
  const auto [first, last] = filled_columns(seen.logical_and(all.at.lt(begin.amax(1, true))));
  if (first == last) return look({live});
  Keys past = columns(all, first, last);
  if (keeps_keys()) {
    past.k = k.slice(2, first, last).detach(), past.v = v.slice(2, first, last).detach();
  } else {
    const Eyes::KeyValue old = eyes.project(x.narrow(1, first, last - first).detach());
    past.k = old.k, past.v = old.v;
  }
  past.until = begin;
  return look({past, live});
}

}  // namespace kinfolk
