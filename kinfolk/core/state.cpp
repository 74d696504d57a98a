#include "kinfolk/core/state.h"

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

void State::select(const Tensor& lanes) {
  transform([&](const Tensor& t) { return t.index_select(0, lanes); });
}

void State::put_lane(int64_t lane, const State& one, int64_t from) {
  for (auto& [name, tensor] : tensors) {
    const auto other = one.tensors.find(name);
    if (other == one.tensors.end() || other->second.dim() != tensor.dim()) {
      fail("[state.", name, "] expected the same tree of tensors; found another member's state");
    }
    Tensor row = other->second.select(0, from);
    Tensor copy = tensor.clone();
    if (copy.select(0, lane).sizes() != row.sizes()) {
      // A growing cache: pad the shorter one with empty columns at the left (positions -1 mark them), along its length
      // axis.
      fail("[state.", name, "] expected a lane of sizes ", copy.select(0, lane).sizes(), "; found ", row.sizes());
    }
    copy.select(0, lane).copy_(row);
    tensor = copy;
  }
  for (auto& [name, part] : parts) {
    const auto other = one.parts.find(name);
    if (other == one.parts.end())
      fail("[state.", name, "] expected the same tree of tensors; found another member's state");
    part.put_lane(lane, other->second, from);
  }
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
