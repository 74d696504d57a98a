#include "kinfolk/nn/mixers/group_cache.h"

#include "kinfolk/nn/memory/cache.h"
#include "kinfolk/nn/memory/cache_append.h"
#include "kinfolk/nn/memory/newest.h"

namespace kinfolk {
namespace {
constexpr auto kKeys = "k", kValues = "v", kCode = "code", kAt = "at", kDocument = "document";
}

State GroupCache::start(int64_t batch, at::TensorOptions like) const {
  const auto whole = like.dtype(at::kLong);
  State state;
  state.tensors[kKeys] = at::zeros({batch, heads, 0, width}, like);
  state.tensors[kValues] = at::zeros({batch, heads, 0, width}, like);
  state.tensors[kCode] = at::zeros({batch, heads, rounds, 0}, whole);
  state.tensors[kAt] = at::zeros({batch, 0}, whole);
  state.tensors[kDocument] = at::zeros({batch, 0}, whole);
  return state;
}

std::string GroupCache::truncate(State& state, int64_t lane, int64_t position) const {
  auto& kept = state.tensors;
  if (const auto why = missing(kept.at(kAt), lane, 0, position); !why.empty()) return why;
  const Tensor left = emptied(kept.at(kAt), lane, position);
  const Newest order(left, -1, true);
  for (const char* name : {kKeys, kValues}) kept[name] = order.keep(kept.at(name), 2);
  kept[kCode] = order.keep(kept.at(kCode), 3);
  kept[kDocument] = order.keep(kept.at(kDocument), 1);
  kept[kAt] = order.keep(left, 1);
  return "";
}

GroupCache::Met GroupCache::meet(const Tensor& k, const Tensor& v, const Tensor& code, const Pass& pass,
                                 State& state) const {
  if (state.tensors.empty()) state = start(k.size(0), k.options());
  auto& kept = state.tensors;
  const auto kind = kept.at(kKeys).scalar_type();  // not that of fresh keys under autocast
  const auto joined = append({{kept.at(kAt), valid_positions(pass), 1},
                              {kept.at(kDocument), documents(pass), 1},
                              {kept.at(kValues), v.to(kind), 2},
                              {kept.at(kKeys), k.to(kind), 2},
                              {kept.at(kCode), code.to(kept.at(kCode).device()), 3}});
  const Tensor &at = joined[0], &document = joined[1];
  Met met{joined[3], joined[2], joined[4], {}, at.size(1) - k.size(2)};
  met.sequences = sequences_of(at.size(0), at.size(1), at.ge(0), document);
  const Newest newest(at, -1, pass.valid.defined() && !pass.valid.all().item<bool>());
  kept[kKeys] = newest.keep_room(met.k, 2);
  kept[kValues] = newest.keep_room(met.v, 2);
  kept[kCode] = newest.keep_room(met.code, 3);
  kept[kAt] = newest.keep_room(at, 1);
  kept[kDocument] = newest.keep_room(document, 1);
  return met;
}

}  // namespace kinfolk
