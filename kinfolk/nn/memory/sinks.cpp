#include "kinfolk/nn/memory/sinks.h"

#include "kinfolk/nn/memory/cache.h"
#include "kinfolk/nn/memory/newest.h"

namespace kinfolk {
namespace {

constexpr auto kFirst = "first_";
constexpr auto kKeys = "k", kValues = "v", kAt = "at", kDocument = "document";

/// The columns of `all` that hold positions 0, ..., first - 1 take their places in `kept`.
struct Filling {
  Tensor found, column;  ///< bool, int64 [B, first]
  Filling(const Tensor& at, int64_t first) {
    const Tensor places = at::arange(first, at.options()).view({1, first, 1});
    const Tensor equal = at.unsqueeze(1).eq(places);  // [B, first, L]
    found = equal.any(-1);
    column = equal.to(at::kChar).argmax(-1);
  }
  Tensor fill(const Tensor& kept, const Tensor& all, int64_t dim) const {
    std::vector<int64_t> shape(static_cast<size_t>(all.dim()), 1), sizes = all.sizes().vec();
    shape[0] = found.size(0), shape[static_cast<size_t>(dim)] = found.size(1);
    sizes[static_cast<size_t>(dim)] = found.size(1);
    return at::where(found.view(shape), all.gather(dim, column.view(shape).expand(sizes)), kept);
  }
};

}  // namespace

Sinks::Sinks(const Options& options, const Context& context) : options_(options), heads_(context.heads) {
  if (!heads_.causal) {
    fail("[", context.path, "] expected a causal pattern with sinks and a window; found one that sees the future");
  }
  for (const int64_t near : heads_.near)
    if (near != options.window) {
      fail("[", context.path, ".window] expected the qk steps to change at the window, ", options.window, "; found ",
           near);
    }
}

Traits Sinks::traits() const {
  Traits traits;
  traits.bounded = true;
  return traits;
}

std::string Sinks::keeps() const {
  return text("the first ", options_.first, " keys of the text and the newest ", options_.window);
}

State Sinks::start(int64_t batch, at::TensorOptions like) const {
  const auto whole = like.dtype(at::kLong);
  State state;
  for (const std::string part : {kFirst, ""}) {
    const int64_t columns = part.empty() ? options_.window - 1 : options_.first;
    state.tensors[part + kKeys] = at::zeros({batch, heads_.groups, columns, heads_.width}, like);
    state.tensors[part + kValues] = at::zeros({batch, heads_.groups, columns, heads_.width}, like);
    state.tensors[part + kAt] = at::full({batch, columns}, -1, whole);
    state.tensors[part + kDocument] = at::zeros({batch, columns}, whole);
  }
  return state;
}

Read Sinks::meet(const Fresh& fresh, const Eyes& eyes, Pass& pass, State* state) {
  State whole;
  if (!state) state = &whole;
  if (state->tensors.empty()) *state = start(fresh.q.size(0), fresh.k.options());
  auto& kept = state->tensors;
  const auto kind = kept.at(kKeys).scalar_type();  // not that of fresh keys under autocast
  const Tensor at = valid_positions(pass), document = documents(pass);
  const Tensor prepared = eyes.prepare_keys(fresh.k, at).at(0);  // of near and far bands alike

  const Filling filling(at, options_.first);
  Keys first;
  first.k = filling.fill(kept.at(std::string(kFirst) + kKeys), prepared.to(kind), 2);
  first.v = filling.fill(kept.at(std::string(kFirst) + kValues), fresh.v.to(kind), 2);
  first.at = filling.fill(kept.at(std::string(kFirst) + kAt), at, 1);
  first.document = filling.fill(kept.at(std::string(kFirst) + kDocument), document, 1);
  Keys recent;
  recent.k = at::cat({kept.at(kKeys), prepared.to(kind)}, 2);  // [B, G, w - 1 + L, d]
  recent.v = at::cat({kept.at(kValues), fresh.v.to(kind)}, 2);
  recent.at = at::cat({kept.at(kAt), at}, 1);
  recent.document = at::cat({kept.at(kDocument), document}, 1);
  const Newest newest(recent.at, options_.window - 1, pass.valid.defined() && !pass.valid.all().item<bool>());
  for (const std::string part : {kFirst, ""}) {
    const Keys& set = part.empty() ? recent : first;
    const auto keep = [&](const Tensor& t, int64_t dim) { return part.empty() ? newest.keep(t, dim) : t; };
    kept[part + kKeys] = keep(set.k, 2);
    kept[part + kValues] = keep(set.v, 2);
    kept[part + kAt] = keep(set.at, 1);
    kept[part + kDocument] = keep(set.document, 1);
  }
  // A key that is among the first and still in the window is met once, as one of the window.
  first.until = pass.position - (options_.window - 1);
  recent.from = first.until;
  std::vector<Keys> sets{first, recent};
  for (Keys& set : sets) {
    if (!pass.document.defined()) set.document = Tensor();
    set.k = set.k.to(fresh.k.scalar_type()), set.v = set.v.to(fresh.v.scalar_type());
  }
  Look how{.prepared = true};
  if (!heads_.near.empty()) how.kept = {0, 1};  // the first keys for the far band, the newest for the near one
  return eyes.look(fresh.q, std::move(sets), how);
}

}  // namespace kinfolk
