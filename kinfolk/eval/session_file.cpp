// Sessions on disk.
#include <algorithm>
#include <sstream>

#include "kinfolk/core/errors.h"
#include "kinfolk/core/safetensors.h"
#include "kinfolk/core/version.h"
#include "kinfolk/eval/session.h"
#include "kinfolk/nn/fingerprint.h"

namespace kinfolk {
namespace {

constexpr auto kFormat = "kinfolk-session-1";
constexpr auto kState = "state/", kScores = "scores", kHistory = "history", kCounts = "history_counts",
               kDropped = "dropped";

[[noreturn]] void wrong(const std::string& path, const std::string& expected, const std::string& found) {
  fail("[session] ", path, ": expected ", expected, "; found ", found);
}

/// The part of a recipe, and the sizes, that decide what a state means.
std::string member_text(const Model& model) {
  Value tree = model.recipe().tree;
  for (const char* key : {"train", "at", "about", "article", "losses", "objective", "head"}) tree.erase(key);
  Size size = model.size();
  size.dropout = 0;
  return write_toml(tree) + "\n[size]\n" + write_toml(write_options(size));
}

/// The first line in which two texts differ.
std::string first_difference(const std::string& before, const std::string& now) {
  std::istringstream a(before), b(now);
  for (std::string x, y;;) {
    const bool more = static_cast<bool>(std::getline(a, x)), others = static_cast<bool>(std::getline(b, y));
    if (!more && !others) return "none";
    if (!more) x = "nothing";
    if (!others) y = "nothing";
    if (x != y) return text("`", x, "` there, `", y, "` here");
  }
}

/// Whether a tensor of a state can stand where a fresh state has `fresh`: of a cache the columns may be others.
bool fits(const Tensor& found, const Tensor& fresh) {
  if (found.scalar_type() != fresh.scalar_type() || found.dim() != fresh.dim()) return false;
  int64_t differ = 0;
  for (int64_t axis = 0; axis < fresh.dim(); ++axis) differ += found.size(axis) != fresh.size(axis);
  return differ == 0 || (differ == 1 && found.size(0) == fresh.size(0));
}

}  // namespace

void Session::save(const std::string& path) const {
  TensorFile file;
  for (const auto& [name, tensor] : state_.flat(kState)) file.tensors[name] = tensor.detach().cpu().contiguous();
  if (scores_.defined()) file.tensors[kScores] = scores_.cpu().contiguous();
  std::vector<int64_t> tokens, counts, positions;
  for (int64_t lane = 0; lane < lanes(); ++lane) {
    const auto& kept = history_[static_cast<size_t>(lane)];
    tokens.insert(tokens.end(), kept.begin(), kept.end());
    counts.push_back(static_cast<int64_t>(kept.size()));
    positions.push_back(position(lane));
  }
  if (!tokens.empty()) file.tensors[kHistory] = at::tensor(tokens, at::kLong);
  file.tensors[kCounts] = at::tensor(counts, at::kLong);
  file.tensors[kDropped] = at::tensor(dropped_, at::kLong);
  std::string places;
  for (const int64_t at : positions) places += text(places.empty() ? "" : " ", at);
  file.metadata = {{"format", kFormat},
                   {"version", kVersion},
                   {"name", model_->recipe().name},
                   {"member", member_text(*model_)},
                   {"fingerprint", fingerprint(*model_)},
                   {"position", places}};
  write_tensors(path, file);
}

Session Session::load(Model& model, const std::string& path, SessionOptions options) {
  TensorFile file = read_tensors(path);
  const auto said = [&](const std::string& key) {
    const auto found = file.metadata.find(key);
    return found == file.metadata.end() ? std::string() : found->second;
  };
  if (said("format") != kFormat) {
    const std::string format = said("format");
    wrong(path, text("a session of format ", kFormat),
          format.empty() ? "a safetensors file of another program" : "format " + format);
  }
  if (const std::string here = fingerprint(model); said("fingerprint") != here) {
    wrong(path, text("a session of this model, with the fingerprint ", here),
          text("one of ", said("name"), " with the fingerprint ", said("fingerprint")));
  }
  if (const std::string here = member_text(model); said("member") != here) {
    wrong(path, "a session of the member as it is set here", first_difference(said("member"), here));
  }
  const auto take = [&](const std::string& name, at::ScalarType type, int64_t dim, bool needed = true) {
    const auto found = file.tensors.find(name);
    if (found == file.tensors.end()) {
      if (!needed) return Tensor();
      wrong(path, text("the tensor ", name), "none of this name");
    }
    const Tensor t = found->second;
    file.tensors.erase(found);
    if (t.scalar_type() != type || t.dim() != dim) {
      wrong(path, text("the tensor ", name, " ", type, " of ", dim, " dimensions"),
            text(t.scalar_type(), " ", t.sizes()));
    }
    return t;
  };
  const Tensor counts = take(kCounts, at::kLong, 1), dropped = take(kDropped, at::kLong, 1);
  const Tensor tokens = take(kHistory, at::kLong, 1, false);
  const int64_t lanes = counts.numel();
  if (lanes < 1 || dropped.numel() != lanes || counts.lt(0).any().item<bool>() || dropped.lt(0).any().item<bool>()) {
    wrong(path, "counts of each lane", text(counts.sizes(), " and ", dropped.sizes()));
  }
  options.lanes = lanes;
  Session out(model, options);
  const Tensor like = model.weights().front().second;
  out.scores_ = take(kScores, like.scalar_type(), 2, false);
  if (out.scores_.defined() && out.scores_.size(0) != lanes) {
    wrong(path, text("scores of ", lanes, " lanes"), text(out.scores_.sizes()));
  }
  auto fresh = out.state_.flat(kState);
  std::map<std::string, Tensor> found;
  for (const auto& [name, tensor] : fresh) {
    const auto at = file.tensors.find(name);
    if (at == file.tensors.end()) wrong(path, text("the tensor ", name), "none of this name");
    if (!fits(at->second, tensor)) {
      wrong(path, text("the tensor ", name, " ", tensor.scalar_type(), " ", tensor.sizes()),
            text(at->second.scalar_type(), " ", at->second.sizes()));
    }
    found[name.substr(std::string(kState).size())] = at->second.to(tensor.device());
    file.tensors.erase(at);
  }
  if (!file.tensors.empty()) wrong(path, "no tensors besides those of the state", file.tensors.begin()->first);
  out.state_ = State::from_flat(found);
  int64_t at = 0;
  for (int64_t lane = 0; lane < lanes; ++lane) {
    const int64_t count = counts[lane].item<int64_t>();
    if (at + count > (tokens.defined() ? tokens.numel() : 0)) wrong(path, "as many tokens as it counts", "fewer");
    auto& kept = out.history_[static_cast<size_t>(lane)];
    if (out.capacity_ != INT64_MAX && options.at_limit != "stop") {
      const int64_t fit = std::min(count, out.capacity_);
      for (int64_t n = count - fit; n < count; ++n) kept.push_back(tokens[at + n].item<int64_t>());
      kept.shrink_to_fit();
    }
    out.dropped_[static_cast<size_t>(lane)] = dropped[lane].item<int64_t>();
    at += count;
  }
  const Tensor seen = out.state_.tensors.at("seen");
  if (seen.lt(0).any().item<bool>()) wrong(path, "positions of at least 0", "others");
  if (out.capacity_ != INT64_MAX) {
    out.used_ = seen.max().item<int64_t>();
    if (out.used_ > out.capacity_) {
      wrong(path, text("at most ", out.capacity_, " tokens, as many as the memory limit holds"), text(out.used_));
    }
    if (options.at_limit != "stop" && !tokens.defined() && out.used_ > 0) {
      wrong(path, "its newest tokens, from which a fresh state is made at the limit",
            "none (save it with the same memory limit)");
    }
  }
  if (options.memory_limit > 0 && out.bytes() > options.memory_limit) {
    wrong(path, text("at most ", options.memory_limit, " bytes, the memory limit"), text(out.bytes()));
  }
  return out;
}

}  // namespace kinfolk
