#include "kinfolk/nn/memory/cache.h"

#include "kinfolk/core/errors.h"
#include "kinfolk/nn/memory/cache_append.h"
#include "kinfolk/nn/memory/newest.h"

namespace kinfolk {
namespace {
constexpr auto kKeys = "k", kValues = "v", kAt = "at", kDocument = "document";

std::string near_keys(size_t n) { return text(kKeys, n + 1); }

/// The newest columns of a set.
Keys newest_columns(const Keys& keys, const Tensor& k) {
  const int64_t count = k.size(2), skip = keys.at.size(1) - count;
  Keys out = keys;
  out.k = k;
  out.v = keys.v.narrow(2, skip, count);
  out.at = keys.at.narrow(1, skip, count);
  if (keys.document.defined()) out.document = keys.document.narrow(1, skip, count);
  return out;
}

}  // namespace

Tensor valid_positions(const Pass& pass) {
  return pass.valid.defined() ? pass.position.masked_fill(pass.valid.logical_not(), -1) : pass.position;
}

Tensor documents(const Pass& pass) { return pass.document.defined() ? pass.document : at::zeros_like(pass.position); }

Traits Cache::traits() const {
  Traits traits;
  traits.bounded = heads_.horizon >= 0;
  traits.relative = true;
  return traits;
}

State Cache::start(int64_t batch, at::TensorOptions like) const {
  const int64_t capacity = std::max<int64_t>(heads_.horizon - 1, 0);
  const auto whole = like.dtype(at::kLong);
  State state;
  state.tensors[kKeys] = at::zeros({batch, heads_.groups, capacity, heads_.width}, like);
  const int64_t value_width = heads_.value_width > 0 ? heads_.value_width : heads_.width;
  state.tensors[kValues] = at::zeros({batch, heads_.groups, capacity, value_width}, like);
  state.tensors[kAt] = at::full({batch, capacity}, -1, whole);
  state.tensors[kDocument] = at::zeros({batch, capacity}, whole);
  for (size_t n = 0; n < heads_.near.size(); ++n) {
    state.tensors[near_keys(n)] =
        at::zeros({batch, heads_.groups, std::min(capacity, heads_.near[n] - 1), heads_.width}, like);
  }
  return state;
}

int64_t Cache::most_bytes(int64_t batch, at::TensorOptions like, int64_t newest) const {
  if (heads_.horizon < 0 && newest <= 0) return -1;
  const int64_t most = heads_.horizon < 0 ? newest : std::max<int64_t>(heads_.horizon, 1);  // columns in a step
  const auto key = static_cast<int64_t>(like.dtype().itemsize()) * heads_.groups;
  const int64_t values = heads_.value_width > 0 ? heads_.value_width : heads_.width;
  int64_t sum = columns_held(most) * (key * (heads_.width + values) + 2 * static_cast<int64_t>(sizeof(int64_t)));
  for (const int64_t near : heads_.near) sum += columns_held(std::min(most, near)) * key * heads_.width;
  return batch * sum;
}

std::string Cache::keeps() const {
  return heads_.horizon < 0 ? "all keys" : text("the newest ", heads_.horizon, " keys");
}

std::string Cache::truncate(State& state, int64_t lane, int64_t position, int64_t newest) const {
  const Tensor at = state.tensors.at(kAt);
  const int64_t window = heads_.horizon >= 0 ? heads_.horizon : newest > 0 ? newest : INT64_MAX;
  if (const auto why = missing(at, lane, window == INT64_MAX ? 0 : position - window + 1, position); !why.empty()) {
    return why;
  }
  const Tensor left = emptied(at, lane, position);
  for (size_t n = 0; n < heads_.near.size(); ++n) {
    Tensor& kept = state.tensors.at(near_keys(n));
    const int64_t count = kept.size(2);
    const Tensor columns = at.narrow(1, at.size(1) - count, count);
    if (const auto why = missing(columns, lane, position - heads_.near[n] + 1, position); !why.empty()) {
      return "of the keys that are turned otherwise nearby, " + why;
    }
  }
  const int64_t capacity = heads_.horizon < 0 ? -1 : at.size(1);
  const Newest order(left, capacity, true);
  for (size_t n = 0; n < heads_.near.size(); ++n) {
    Tensor& kept = state.tensors.at(near_keys(n));
    const int64_t count = kept.size(2);
    const Tensor columns = left.narrow(1, at.size(1) - count, count);
    const int64_t all = order.keep(left, 1).size(1);
    kept = Newest(columns, std::min(all, count), true).keep(kept, 2);
  }
  for (const char* name : {kKeys, kValues}) state.tensors[name] = order.keep(state.tensors.at(name), 2);
  state.tensors[kDocument] = order.keep(state.tensors.at(kDocument), 1);
  state.tensors[kAt] = order.keep(left, 1);
  return "";
}

Read Cache::meet(const Fresh& fresh, const Eyes& eyes, Pass& pass, State* state) {
  Keys keys{fresh.k, fresh.v, valid_positions(pass), pass.document, {}, {}};
  if (!state) return eyes.look(fresh.q, {keys}, {});
  if (state->tensors.empty()) *state = start(keys.at.size(0), fresh.k.options());
  auto& kept = state->tensors;
  const auto kind = kept.at(kKeys).scalar_type();  // not that of fresh keys under autocast
  const auto made = eyes.prepare_keys(fresh.k, keys.at);
  std::vector<Joint> parts{{kept.at(kAt), keys.at, 1},
                           {kept.at(kDocument), documents(pass), 1},
                           {kept.at(kValues), fresh.v, 2},
                           {kept.at(kKeys), made.at(0), 2}};
  for (size_t n = 0; n < heads_.near.size(); ++n) parts.push_back({kept.at(near_keys(n)), made.at(n + 1), 2});
  const auto joined = append(parts);
  keys.at = joined[0], keys.document = joined[1];  // [B, C + L]
  keys.v = joined[2], keys.k = joined[3];          // [B, G, C + L, d]
  std::vector<Keys> sets{keys};
  for (size_t n = 0; n < heads_.near.size(); ++n) sets.push_back(newest_columns(keys, joined[4 + n]));

  const bool gaps = pass.valid.defined() && !pass.valid.all().item<bool>();
  int64_t capacity = heads_.horizon < 0 ? -1 : std::max<int64_t>(heads_.horizon - 1, 0);
  if (capacity < 0 && pass.newest > 0 && keys.at.size(1) >= pass.newest) {
    capacity = pass.newest - 1;
    if (keys.at.size(1) > pass.newest)
      for (auto& set : sets) set.from = pass.position - capacity;
  }
  const Newest newest(keys.at, capacity, gaps);
  kept[kKeys] = newest.keep_room(keys.k, 2).to(kind);
  kept[kValues] = newest.keep_room(keys.v, 2).to(kind);
  kept[kAt] = newest.keep_room(keys.at, 1);
  kept[kDocument] = newest.keep_room(keys.document, 1);
  Look how{.prepared = true};
  for (size_t n = 0; n < sets.size(); ++n) {
    how.kept.push_back(n);
    if (!pass.document.defined()) sets[n].document = Tensor();
    if (n == 0) continue;
    const int64_t near = std::min(kept.at(kAt).size(1), heads_.near[n - 1] - 1);
    kept[near_keys(n - 1)] = Newest(sets[n].at, near, gaps).keep_room(sets[n].k, 2).to(kind);
  }
  return eyes.look(fresh.q, std::move(sets), how);
}

}  // namespace kinfolk
