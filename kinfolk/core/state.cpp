#include "kinfolk/core/state.h"

#include <algorithm>

#include "kinfolk/core/errors.h"

namespace kinfolk {

void State::transform(const std::function<Tensor(const Tensor&)>& f) {
  for (auto& [name, tensor] : tensors) tensor = f(tensor);
  for (auto& [name, part] : parts) part.transform(f);
}

void State::detach() {
  transform([](const Tensor& t) { return t.detach(); });
}

State State::clone() const {
  State copy = *this;
  copy.transform([](const Tensor& t) { return t.clone(); });
  return copy;
}

int64_t State::bytes() const {
  int64_t sum = 0;
  for (const auto& [name, tensor] : tensors) sum += tensor.numel() * static_cast<int64_t>(tensor.element_size());
  for (const auto& [name, part] : parts) sum += part.bytes();
  return sum;
}

namespace {

void collect(const State& state, std::map<const void*, int64_t>& storages) {
  for (const auto& [name, tensor] : state.tensors) {
    storages[tensor.storage().unsafeGetStorageImpl()] = static_cast<int64_t>(tensor.storage().nbytes());
  }
  for (const auto& [name, part] : state.parts) collect(part, storages);
}

}  // namespace

int64_t State::held_bytes() const {
  std::map<const void*, int64_t> storages;
  collect(*this, storages);
  int64_t sum = 0;
  for (const auto& [storage, bytes] : storages) sum += bytes;
  return sum;
}

void State::select(const Tensor& lanes) {
  transform([&](const Tensor& t) { return t.index_select(0, lanes); });
}

namespace {

/// t with `size` columns along `axis`: empty ones are added at the left, where a cache has its oldest.
Tensor widen(const Tensor& t, int64_t axis, int64_t size, bool positions) {
  auto sizes = t.sizes().vec();
  sizes[static_cast<size_t>(axis)] = size - t.size(axis);
  return at::cat({at::full(sizes, positions ? -1 : 0, t.options()), t}, axis);
}

Tensor with_lane(const std::string& name, Tensor tensor, int64_t lane, const Tensor& source, int64_t from) {
  if (lane < 0 || lane >= tensor.size(0)) {
    fail("[state.", name, "] expected a lane from 0 to ", tensor.size(0) - 1, "; found ", lane);
  }
  if (from < 0 || from >= source.size(0)) {
    fail("[state.", name, "] expected a lane from 0 to ", source.size(0) - 1, " to copy; found ", from);
  }
  Tensor row = source.narrow(0, from, 1);
  std::vector<int64_t> differ;
  for (int64_t axis = 1; axis < tensor.dim() && row.dim() == tensor.dim(); ++axis)
    if (tensor.size(axis) != row.size(axis)) differ.push_back(axis);
  if (row.dim() != tensor.dim() || differ.size() > 1 || row.scalar_type() != tensor.scalar_type()) {
    fail("[state.", name, "] expected a lane of ", tensor.scalar_type(), " ", tensor.sizes().slice(1), "; found ",
         row.scalar_type(), " ", row.sizes().slice(1));
  }
  for (const int64_t axis : differ) {
    const int64_t size = std::max(tensor.size(axis), row.size(axis));
    if (row.size(axis) < size) row = widen(row, axis, size, name == "at");
    if (tensor.size(axis) < size) tensor = widen(tensor, axis, size, name == "at");
  }
  return at::cat({tensor.narrow(0, 0, lane), row, tensor.narrow(0, lane + 1, tensor.size(0) - lane - 1)});
}

/// Drops the oldest columns of a cache that grows where no lane has anything in them any more, down to `least`.
void drop_empty_columns(std::map<std::string, Tensor>& tensors, const std::map<std::string, Tensor>& least) {
  const auto at = tensors.find("at");
  if (at == tensors.end() || at->second.dim() != 2) return;
  const int64_t columns = at->second.size(1), floor = least.at("at").size(1);
  if (columns <= floor) return;
  const Tensor filled = at->second.ge(0).any(0).nonzero();
  const int64_t live = filled.numel() == 0 ? 0 : columns - filled[0].item<int64_t>(), kept = std::max(live, floor);
  if (kept == columns) return;
  for (auto& [name, tensor] : tensors) {
    const Tensor& one = least.at(name);
    for (int64_t axis = 1; axis < tensor.dim(); ++axis) {
      const int64_t size = tensor.size(axis);
      if (size == one.size(axis) || size > columns || size <= kept) continue;
      tensor = tensor.narrow(axis, size - kept, kept).clone(at::MemoryFormat::Contiguous);
    }
  }
}

}  // namespace

void State::put_lane(int64_t lane, const State& one, int64_t from) {
  State next;  // whole, or not at all
  const bool same_names = std::equal(tensors.begin(), tensors.end(), one.tensors.begin(), one.tensors.end(),
                                     [](const auto& a, const auto& b) { return a.first == b.first; });
  const bool same_parts = std::equal(parts.begin(), parts.end(), one.parts.begin(), one.parts.end(),
                                     [](const auto& a, const auto& b) { return a.first == b.first; });
  if (!same_names || !same_parts) {
    fail("[state] expected the same tree of tensors; found another member's state");
  }
  for (const auto& [name, tensor] : tensors) {
    next.tensors[name] = with_lane(name, tensor, lane, one.tensors.at(name), from);
  }
  drop_empty_columns(next.tensors, one.tensors);
  for (const auto& [name, part] : parts) {
    State deeper = part;
    deeper.put_lane(lane, one.parts.at(name), from);
    next.parts[name] = std::move(deeper);
  }
  *this = std::move(next);
}

std::map<std::string, Tensor> State::flat(const std::string& prefix) const {
  std::map<std::string, Tensor> out;
  for (const auto& [name, tensor] : tensors) out[prefix + name] = tensor;
  for (const auto& [name, part] : parts) out.merge(part.flat(prefix + name + "/"));
  return out;
}

State State::from_flat(const std::map<std::string, Tensor>& flat) {
  State root;
  for (const auto& [path, tensor] : flat) {
    State* node = &root;
    size_t from = 0;
    for (size_t slash; (slash = path.find('/', from)) != std::string::npos; from = slash + 1) {
      node = &node->parts[path.substr(from, slash - from)];
    }
    node->tensors[path.substr(from)] = tensor;
  }
  return root;
}

}  // namespace kinfolk
