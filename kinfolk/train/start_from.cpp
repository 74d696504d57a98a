#include "kinfolk/train/start_from.h"

#include <set>

#include "kinfolk/core/errors.h"
#include "kinfolk/core/safetensors.h"
#include "kinfolk/train/checkpoint.h"

namespace kinfolk {
namespace {

constexpr size_t kNamed = 12;  // of a list of names

std::string names_of(const std::vector<std::string>& all) {
  std::string out;
  for (size_t n = 0; n < std::min(all.size(), kNamed); ++n) out += (n ? ", " : ": ") + all[n];
  return all.size() > kNamed ? text(out, " and ", all.size() - kNamed, " more") : out;
}

}  // namespace

StartedFrom start_from(Model& model, const std::string& path) {
  const std::string file = checkpoint_of(path);
  read_record(file);  // refuses what is no checkpoint
  const auto tensors = read_tensors(file).tensors;
  StartedFrom out;
  std::vector<std::pair<Tensor, Tensor>> copies;
  std::set<std::string> seen;
  const auto take = [&](const std::string& prefix, const std::string& name, const Tensor& tensor) {
    const auto found = tensors.find(prefix + name);
    if (found == tensors.end()) {
      out.fresh.push_back(name);
      return;
    }
    if (found->second.sizes() != tensor.sizes()) {
      fail("[from] ", file, ": expected ", name, " ", tensor.sizes(), ", as the model has it; found ",
           found->second.sizes(), " (another --size, or an option of the recipe that changes it)");
    }
    copies.emplace_back(tensor, found->second);
    out.taken.push_back(name);
    seen.insert(prefix + name);
  };
  for (const auto& [name, tensor] : model.weights()) take("model.", name, tensor);
  for (const auto& item : model.named_buffers())
    if (item.value().defined()) take("buffer.", item.key(), item.value());
  for (const auto& [name, tensor] : tensors) {
    if (seen.count(name)) continue;
    for (const std::string prefix : {"model.", "buffer."})
      if (name.rfind(prefix, 0) == 0) out.left.push_back(name.substr(prefix.size()));
  }
  if (out.taken.empty())
    fail("[from] ", file, ": expected tensors that the model has, too; found none of the same name");
  const at::NoGradGuard no_grad;
  for (auto& [to, from] : copies) to.copy_(from);
  return out;
}

std::string describe(const StartedFrom& started) {
  std::string out =
      text(started.taken.size(), " tensors taken; ", started.fresh.size(), " new", names_of(started.fresh));
  if (!started.left.empty()) out += text("; ", started.left.size(), " left out", names_of(started.left));
  return out;
}

void freeze(Model& model, const std::vector<std::string>& names) {
  std::set<std::string> left(names.begin(), names.end());
  std::vector<Tensor> frozen;
  size_t learning = 0;
  for (auto& [name, tensor] : model.weights()) {
    if (left.erase(name)) {
      frozen.push_back(tensor);
    } else {
      ++learning;
    }
  }
  for (const auto& item : model.named_buffers()) left.erase(item.key());
  if (!left.empty()) fail("[freeze] expected names of the model's weights; found ", *left.begin());
  if (learning == 0) fail("[freeze] expected weights that are not frozen; found none, so that nothing would learn");
  for (auto& tensor : frozen) tensor.set_requires_grad(false);
}

}  // namespace kinfolk
