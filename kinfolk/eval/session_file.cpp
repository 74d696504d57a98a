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

constexpr auto kFormat = "kinfolk-session-2", kChecksum = "checksum";
constexpr auto kState = "state/", kScores = "scores", kHistory = "history", kCounts = "history_counts",
               kRecent = "recent", kRecentCounts = "recent_counts", kDropped = "dropped";

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

/// Tokens of all lanes one after another, and how many there are of each; of a lane the newest `most` at most.
void put_tokens(TensorFile& file, const char* name, const char* counts_name,
                const std::vector<std::vector<int64_t>>& lanes, int64_t most) {
  std::vector<int64_t> tokens, counts;
  for (const auto& kept : lanes) {
    const auto count = std::min(most, static_cast<int64_t>(kept.size()));
    tokens.insert(tokens.end(), kept.end() - count, kept.end());
    counts.push_back(count);
  }
  if (!tokens.empty()) file.tensors[name] = at::tensor(tokens, at::kLong);
  file.tensors[counts_name] = at::tensor(counts, at::kLong);
}

/// What `put_tokens` has put; at most `most` of a lane.
std::vector<std::vector<int64_t>> lanes_of(const std::string& path, const Tensor& tokens, const Tensor& counts,
                                           int64_t most) {
  std::vector<std::vector<int64_t>> out;
  int64_t at = 0, left = tokens.defined() ? tokens.numel() : 0;
  for (int64_t lane = 0; lane < counts.numel(); ++lane) {
    const int64_t count = counts[lane].item<int64_t>(), fit = std::min(count, most);
    if (count > left) wrong(path, "as many tokens as it counts", "fewer");
    auto& kept = out.emplace_back(static_cast<size_t>(fit));
    const int64_t* from = fit > 0 ? tokens.const_data_ptr<int64_t>() + at + count - fit : nullptr;
    std::copy(from, from + fit, kept.begin());
    at += count, left -= count;
  }
  return out;
}

uint64_t hash_words(const std::string& words, uint64_t seed) { return hash_bytes(words.data(), words.size(), seed); }

}  // namespace

std::string session_checksum(const TensorFile& file) {
  uint64_t hash = 0;
  for (const auto& [key, value] : file.metadata)
    if (key != kChecksum) hash = hash_words(value, hash_words(key, hash));
  for (const auto& [name, tensor] : file.tensors) {
    const Tensor plain = tensor.contiguous();
    hash = hash_words(text(name, ' ', plain.scalar_type(), ' ', plain.sizes()), hash);
    hash = hash_bytes(plain.const_data_ptr(), plain.nbytes(), hash);
  }
  return hexadecimal(hash);
}

void Session::save(const std::string& path) const {
  TensorFile file;
  for (const auto& [name, tensor] : state_.flat(kState)) file.tensors[name] = tensor.detach().cpu().contiguous();
  if (scores_.defined()) file.tensors[kScores] = scores_.cpu().contiguous();
  put_tokens(file, kHistory, kCounts, history_, INT64_MAX);
  put_tokens(file, kRecent, kRecentCounts, recent_, keep_recent_);
  file.tensors[kDropped] = at::tensor(dropped_, at::kLong);
  std::string places;
  for (int64_t lane = 0; lane < lanes(); ++lane) places += text(places.empty() ? "" : " ", position(lane));
  file.metadata = {{"format", kFormat},
                   {"version", kVersion},
                   {"name", model_->recipe().name},
                   {"member", member_text(*model_)},
                   {"fingerprint", fingerprint(*model_)},
                   {"position", places}};
  file.metadata[kChecksum] = session_checksum(file);
  write_tensors(path, file);
}

Session Session::load(Model& model, const std::string& path, SessionOptions options) {
  TensorFile file = read_tensors(path, "session");
  const auto said = [&](const std::string& key) {
    const auto found = file.metadata.find(key);
    return found == file.metadata.end() ? std::string() : found->second;
  };
  if (said("format") != kFormat) {
    const std::string format = said("format");
    wrong(path, text("a session of format ", kFormat),
          format.empty()                        ? "a safetensors file of another program"
          : format.starts_with(kSessionFormats) ? "format " + format + ", of another version of this program"
                                                : "format " + format);
  }
  if (const std::string sum = session_checksum(file); said(kChecksum) != sum) {
    wrong(path, text("bytes with the checksum ", said(kChecksum), ", as they were saved"),
          text(sum, " (the file was changed)"));
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
  const Tensor recent_counts = take(kRecentCounts, at::kLong, 1);
  const Tensor tokens = take(kHistory, at::kLong, 1, false), recent = take(kRecent, at::kLong, 1, false);
  const int64_t lanes = counts.numel();
  for (const Tensor& one : {counts, dropped, recent_counts}) {
    if (lanes < 1 || one.numel() != lanes || one.lt(0).any().item<bool>()) {
      wrong(path, "counts of each lane", text(counts.sizes(), " and ", one.sizes()));
    }
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
  const bool remembers = out.capacity_ != INT64_MAX && options.at_limit != "stop";
  out.history_ = lanes_of(path, tokens, counts, remembers ? out.capacity_ : 0);
  out.recent_ = lanes_of(path, recent, recent_counts, INT64_MAX);
  for (const auto& kept : out.recent_) out.keep_recent_ = std::max(out.keep_recent_, static_cast<int64_t>(kept.size()));
  out.dropped_.assign(dropped.const_data_ptr<int64_t>(), dropped.const_data_ptr<int64_t>() + lanes);
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
