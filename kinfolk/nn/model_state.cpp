// What can be done with the state of a whole model: its tree follows the layers.
#include <c10/core/Device.h>

#include "kinfolk/core/errors.h"
#include "kinfolk/nn/model.h"

namespace kinfolk {
namespace {

/// The branch that "branch.N" of a layer's state belongs to, else null.
const Branch* branch_of(const Layer& layer, const std::string& name) {
  const std::string start = "branch.";
  if (name.rfind(start, 0) != 0) return nullptr;
  const auto index = static_cast<size_t>(std::stoll(name.substr(start.size())));
  return index < layer.steps().size() ? layer.steps()[index].branch.get() : nullptr;
}

/// Calls f(branch, its state, its place) for each branch with a state; "" or the first answer that is not.
std::string each_branch(State& state, const std::vector<std::shared_ptr<Layer>>& layers, const Layer* inside,
                        const std::string& path,
                        const std::function<std::string(const Branch&, State&, const std::string&)>& f) {
  for (auto& [name, part] : state.parts) {
    const std::string place = path.empty() ? name : path + "/" + name, start = "layer.";
    std::string answer;
    if (const Branch* branch = inside ? branch_of(*inside, name) : nullptr) {
      answer = f(*branch, part, place);
    } else if (name.rfind(start, 0) == 0) {
      answer = each_branch(part, layers, layers.at(static_cast<size_t>(std::stoll(name.substr(start.size())))).get(),
                           place, f);
    } else {
      answer = each_branch(part, layers, inside, place, f);
    }
    if (!answer.empty()) return answer;
  }
  return "";
}

}  // namespace

std::string Keeper::truncate(State& state, int64_t, int64_t, int64_t) const {
  return state.empty() ? "" : "its state sums up what was read and cannot lose a part of it";
}

int64_t Branch::most_bytes(int64_t batch, at::TensorOptions like, int64_t) const {
  const State fresh = start(batch, like.device(at::kMeta));
  return fresh.empty() || traits().bounded ? fresh.bytes() : -1;
}

int64_t Memory::most_bytes(int64_t batch, at::TensorOptions like, int64_t) const {
  return traits().bounded ? start(batch, like.device(at::kMeta)).bytes() : -1;
}

std::string Branch::keeps() const { return traits().bounded ? "a state of fixed size" : "all keys"; }

std::string Memory::keeps() const { return traits().bounded ? "a state of fixed size" : "all keys"; }

std::string Model::truncate(State& state, int64_t lane, int64_t position, int64_t newest) const {
  const auto seen = state.tensors.find("seen");
  if (seen == state.tensors.end()) return "it is no state of this model";
  const int64_t lanes = seen->second.size(0);
  if (lane < 0 || lane >= lanes) fail("[state] expected a lane from 0 to ", lanes - 1, "; found ", lane);
  const int64_t read = seen->second[lane].item<int64_t>();
  if (position < 0 || position > read) {
    fail("[state] expected a position from 0 to ", read, ", which lane ", lane, " has read; found ", position);
  }
  if (position == read) return "";
  State next = state;  // its tensors are replaced, so that the old state stays as it is
  if (position == 0) {
    next.put_lane(lane, start(1));
    state = std::move(next);
    return "";
  }
  if (state.tensors.at("document")[lane].item<int64_t>() > 0) {
    return "the lane has read several documents, and their borders are not kept";
  }
  const std::string why_not =
      each_branch(next, layers_, nullptr, "", [&](const Branch& branch, State& own, const std::string& place) {
        const std::string why = branch.truncate(own, lane, position, newest);
        return why.empty() ? why : place + ": " + why;
      });
  if (!why_not.empty()) return why_not;
  Tensor& count = next.tensors["seen"];
  count = count.clone();
  count[lane] = position;
  state = std::move(next);
  return "";
}

int64_t Model::most_bytes(int64_t batch, int64_t newest) const {
  const auto like = weights().front().second.options().requires_grad(std::nullopt);
  State state = start(batch, like.device(at::kMeta));
  int64_t sum = 0;
  for (const auto& [name, tensor] : state.tensors) sum += tensor.numel() * static_cast<int64_t>(tensor.element_size());
  const std::string grows =
      each_branch(state, layers_, nullptr, "", [&](const Branch& branch, State&, const std::string& place) {
        const int64_t most = branch.most_bytes(batch, like, newest);
        if (most < 0) return place;
        sum += most;
        return std::string();
      });
  return grows.empty() ? sum : -1;
}

std::string Model::keeps() const {
  std::vector<std::string> once;
  std::string out;
  for (const auto& layer : layers_) {
    for (const auto& step : layer->steps()) {
      if (step.branch->start(1, at::TensorOptions().device(at::kMeta)).empty()) continue;
      const std::string words = step.kind + ": " + step.branch->keeps();
      if (std::find(once.begin(), once.end(), words) != once.end()) continue;
      out += (once.empty() ? "" : "; ") + words;
      once.push_back(words);
    }
  }
  return once.empty() ? "nothing" : out;
}

}  // namespace kinfolk
