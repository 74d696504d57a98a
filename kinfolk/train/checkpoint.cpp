#include "kinfolk/train/checkpoint.h"

#include <algorithm>
#include <cinttypes>
#include <cstdio>
#include <set>
#include <sstream>

#include "kinfolk/core/errors.h"
#include "kinfolk/core/safetensors.h"
#include "kinfolk/core/version.h"
#include "kinfolk/train/data/recall.h"

namespace kinfolk {
namespace {

namespace fs = std::filesystem;
constexpr auto kModel = "model.", kBuffer = "buffer.", kOptimiser = "optimiser.", kState = "state.";

[[noreturn]] void wrong(const std::string& path, const std::string& expected, const std::string& found) {
  fail("[checkpoint] ", path, ": expected ", expected, "; found ", found);
}

NamedTensors buffers(const Model& model) {
  NamedTensors out;
  for (const auto& item : model.named_buffers())
    if (item.value().defined()) out.emplace_back(item.key(), item.value());
  return out;
}

std::map<std::string, at::Tensor> with_prefix(const std::map<std::string, at::Tensor>& all, const std::string& prefix) {
  std::map<std::string, at::Tensor> out;
  for (auto it = all.lower_bound(prefix); it != all.end() && it->first.starts_with(prefix); ++it) {
    out[it->first.substr(prefix.size())] = it->second;
  }
  return out;
}

/// Copies every named tensor of `from` into that of `to`, which must be the same set.
void fill(const NamedTensors& to, std::map<std::string, at::Tensor> from, const std::string& prefix,
          const std::string& path) {
  at::NoGradGuard no_grad;
  for (const auto& [name, tensor] : to) {
    const auto found = from.find(name);
    if (found == from.end()) wrong(path, text("the tensor ", prefix, name, " ", tensor.sizes()), "none of this name");
    if (found->second.sizes() != tensor.sizes()) {
      wrong(path, text("the tensor ", prefix, name, " ", tensor.sizes()), text("one of shape ", found->second.sizes()));
    }
    tensor.copy_(found->second);
    from.erase(found);
  }
  if (!from.empty()) {
    wrong(path, "no tensors besides those of the recipe",
          text(prefix, from.begin()->first, " ", from.begin()->second.sizes()));
  }
}

RunRecord record_of(const std::map<std::string, std::string>& metadata, const std::string& path) {
  const auto get = [&](const std::string& key) {
    const auto found = metadata.find(key);
    if (found == metadata.end()) wrong(path, text("its metadata to hold ", key), "none");
    return found->second;
  };
  const auto format = metadata.find("format");
  if (format == metadata.end() || !format->second.starts_with("kinfolk-")) {
    wrong(path, text("a checkpoint of format ", kCheckpointFormat),
          format == metadata.end() ? "a safetensors file of another program" : "format " + format->second);
  }
  if (format->second.starts_with(kSessionFormats)) {
    wrong(path, "a run or one of its checkpoints", "a session (generate RUN --load-session FILE goes on from it)");
  }
  if (format->second != kCheckpointFormat) {
    wrong(path, text("format ", kCheckpointFormat),
          text("format ", format->second, ", of another version of this program"));
  }
  RunRecord record;
  try {
    record.recipe = {get("name"), parse_toml(get("recipe"), path)};
    record.size = read_options<Size>(parse_toml(get("size"), path), "size");
    record.settings = read_options<TrainSettings>(parse_toml(get("settings"), path), "train");
    record.point = read_options<RunPoint>(parse_toml(get("point"), path), "point");
  } catch (const UsageError& error) {
    wrong(path, "metadata that this version reads", error.what());
  }
  record.data = get("data");
  record.data_split = get("data_split");
  record.fingerprint = get("fingerprint");
  record.holds = get("holds");
  record.version = get("version");
  if (const auto found = metadata.find("from"); found != metadata.end()) record.from = found->second;
  if (const auto found = metadata.find("frozen"); found != metadata.end()) {
    std::istringstream lines(found->second);
    for (std::string name; std::getline(lines, name);) record.frozen.push_back(name);
  }
  if (const auto found = metadata.find("images"); found != metadata.end()) {
    const int read = std::sscanf(found->second.c_str(), "%" SCNd64 "x%" SCNd64 "x%" SCNd64, &record.images.rows,
                                 &record.images.columns, &record.images.levels);
    const auto& [rows, columns, levels] = record.images;
    if (read != 3 || rows < 1 || columns < 1 || levels < 2 || rows > (int64_t{1} << 24) / columns ||
        record.images != ImageForm{rows, columns, record.size.vocabulary - 1}) {
      wrong(path, text("images of rows x columns x ", record.size.vocabulary - 1, " levels"), found->second);
    }
  }
  return record;
}

LoadedRun load(const TensorFile& file, const std::string& path, bool test, const double* dropout,
               const std::vector<std::string>& sets = {}) {
  LoadedRun run;
  run.path = path;
  run.record = record_of(file.metadata, path);
  if (dropout) run.record.size.dropout = *dropout;
  Recipe recipe = test ? at_test(run.record.recipe) : run.record.recipe;
  for (const auto& set : sets) override_recipe(recipe, set);
  try {
    run.model = Model::make(recipe, run.record.size);
  } catch (const UsageError& error) {
    if (!sets.empty()) throw;
    wrong(path, "a recipe that this version builds", error.what());
  }
  fill(run.model->weights(), with_prefix(file.tensors, kModel), kModel, path);
  fill(buffers(*run.model), with_prefix(file.tensors, kBuffer), kBuffer, path);
  run.model->eval();
  return run;
}

/// Puts the tensors into the tree that a fresh state has, so that parts without tensors exist as well.
void put(State& state, const std::map<std::string, at::Tensor>& flat) {
  for (const auto& [at, tensor] : flat) {
    State* node = &state;
    size_t from = 0;
    for (size_t slash; (slash = at.find('/', from)) != std::string::npos; from = slash + 1) {
      node = &node->parts[at.substr(from, slash - from)];
    }
    node->tensors[at.substr(from)] = tensor;
  }
}

}  // namespace

void save_checkpoint(const std::string& path, const Model& model, const AdamW* optimiser,
                     const std::vector<State>& states, RunRecord record) {
  TensorFile file;
  const auto add = [&](const std::string& name, const at::Tensor& tensor) {
    if (tensor.defined()) file.tensors[name] = tensor.detach().to(at::kCPU).contiguous();
  };
  for (const auto& [name, tensor] : model.weights()) add(kModel + name, tensor);
  if (!record.frozen.empty()) {
    const std::set<std::string> frozen(record.frozen.begin(), record.frozen.end());
    for (const auto& item : model.named_parameters())
      if (frozen.count(item.key())) add(kModel + item.key(), item.value());
  }
  for (const auto& [name, tensor] : buffers(model)) add(kBuffer + name, tensor);
  if (optimiser) {
    for (const auto& [name, tensor] : optimiser->moments()) add(kOptimiser + name, tensor);
    for (size_t i = 0; i < states.size(); ++i)
      for (const auto& [name, tensor] : states[i].flat()) add(text(kState, i, "/", name), tensor);
  }
  file.metadata = {{"format", kCheckpointFormat},
                   {"version", kVersion},
                   {"name", record.recipe.name},
                   {"recipe", write_toml(record.recipe.tree)},
                   {"size", write_toml(write_options(record.size))},
                   {"settings", write_toml(write_options(record.settings))},
                   {"point", write_toml(write_options(record.point))},
                   {"data", record.data},
                   {"data_split", record.data_split},
                   {"fingerprint", record.fingerprint},
                   {"holds", optimiser ? "all" : "weights"}};
  if (!record.from.empty()) file.metadata["from"] = record.from;
  for (const auto& name : record.frozen) file.metadata["frozen"] += name + "\n";
  if (const auto& form = record.images; form.any()) {
    file.metadata["images"] = text(form.rows, "x", form.columns, "x", form.levels);
  }
  write_tensors(path, file);
}

std::string checkpoint_of(const std::string& path) {
  std::error_code error;
  if (!fs::is_directory(path, error)) {
    if (!fs::exists(path, error)) wrong(path, "a run folder or a checkpoint file", "nothing there");
    return path;
  }
  const fs::path last = fs::path(path) / "checkpoints" / "last.safetensors";
  if (!fs::exists(last, error)) wrong(path, "a run folder with checkpoints/last.safetensors", "none in it");
  return last.string();
}

RunRecord read_record(const std::string& file) { return record_of(read_metadata(file), file); }

LoadedRun load_run(const std::string& path, bool test, const std::vector<std::string>& sets) {
  const std::string file = checkpoint_of(path);
  return load(read_tensors(file), file, test, nullptr, sets);
}

LoadedTraining load_training(const std::string& path, double dropout) {
  const std::string file = checkpoint_of(path);
  const TensorFile tensors = read_tensors(file);
  LoadedTraining out;
  out.run = load(tensors, file, false, &dropout);
  if (out.run.record.holds != "all") wrong(file, "a checkpoint with optimiser and state", "weights alone");
  out.moments = with_prefix(tensors.tensors, kOptimiser);
  if (out.run.model->traits().carries && !out.run.record.images.any() && !holds_recall(out.run.record.data)) {
    const auto& settings = out.run.record.settings;
    for (int64_t part = 0; part < settings.accumulate; ++part) {
      const auto flat = with_prefix(tensors.tensors, text(kState, part, "/"));
      if (flat.empty()) wrong(file, text("a carried state ", part), "none");
      out.states.push_back(out.run.model->start(settings.lanes / settings.accumulate));
      put(out.states.back(), flat);
    }
  }
  return out;
}

}  // namespace kinfolk
