// Model::explain: the tree as built, with what each part costs.
#include <iomanip>

#include "kinfolk/core/errors.h"
#include "kinfolk/nn/model.h"

namespace kinfolk {
namespace {

int64_t size_of(const torch::nn::Module& module) {
  int64_t sum = 0;
  for (const auto& [name, tensor] : trainable(module)) sum += tensor.numel();
  return sum;
}

std::string options_text(const Value& table) {
  std::string out;
  if (const auto* entries = table.as<Value::Table>())
    for (const auto& [key, value] : *entries)
      if (key != "kind") out += " " + key + " = " + write_toml_value(value);
  return out;
}

std::string kind_of(const Value* value, const char* standard) {
  if (!value) return standard;
  const std::string kind = Spec(*value).kind();
  return (kind.empty() ? standard : kind) + options_text(*value);
}

struct Table {
  std::ostringstream out;
  void row(const std::string& part, const std::string& what, int64_t parameters, double flops) {
    out << "  " << std::left << std::setw(14) << part << std::right << std::setw(12) << parameters << std::setw(14)
        << std::llround(flops) << "  " << what << "\n";
  }
};

std::string branches_of(const Layer& layer, const Value& group, int64_t context, const std::string& prefix) {
  Table table;
  const auto& entries = *group.find("branches")->as<Value::Array>();
  for (size_t i = 0; i < layer.steps().size(); ++i) {
    const Step& step = layer.steps()[i];
    const char* norm = step.norm_before ? (step.norm_after ? "both" : "before") : step.norm_after ? "after" : "none";
    std::string options = options_text(entries[i]);
    if (options.find(" norm = ") == std::string::npos) options += text(" norm = \"", norm, "\"");
    table.row(prefix + std::to_string(i), step.kind + options, size_of(*step.branch),
              step.branch->flops(context, 0) / static_cast<double>(context));
    table.out << std::string(44, ' ') << step.branch->explain() << "\n";
  }
  return table.out.str();
}

}  // namespace

std::string Model::explain() {
  const int64_t context = size_.context;
  std::ostringstream out;
  const auto words = [&](const char* key) {
    const Value* value = recipe_.tree.find(key);
    return value && value->as<std::string>() ? *value->as<std::string>() : std::string();
  };
  out << recipe_.name << ": " << words("about") << "\n";
  if (!words("article").empty()) out << "article: " << words("article") << "\n";
  const Value sizes = write_options(size_);
  out << "size:" << options_text(sizes) << "\n";
  if (const Value* let = recipe_.tree.find("let")) out << "let:" << options_text(*let) << "\n";
  if (const Value* at = recipe_.tree.find("at"))
    if (const Value* test = at->find("test")) out << "at test:" << options_text(*test) << "\n";

  out << "\n  part            parameters flops a token  (forward, mean over the first " << context << " tokens)\n";
  Table table;
  table.row("input", kind_of(recipe_.tree.find("input"), "tokens"), size_of(*input_), 0);
  // Equal layers in a row are shown once.
  std::vector<std::string> shown;
  for (const auto& layer : layers_) shown.push_back(branches_of(*layer, layer->table(), context, "  branches."));
  for (size_t i = 0; i < layers_.size();) {
    size_t end = i + 1;
    while (end < layers_.size() && shown[end] == shown[i]) ++end;
    const std::string name = "layers." + std::to_string(i) + (end - i > 1 ? "-" + std::to_string(end - 1) : "");
    table.row(name, text(end - i, end - i > 1 ? " equal layers, each:" : " layer:"), size_of(*layers_[i]),
              layers_[i]->flops(context, 0) / static_cast<double>(context));
    table.out << shown[i];
    i = end;
  }
  table.row("depth", kind_of(recipe_.tree.find("depth"), "once"), size_of(*depth_), 0);
  if (last_norm_) table.row("norm", "of what the head reads", size_of(*last_norm_), 0);
  table.row("head", kind_of(recipe_.tree.find("head"), "lm"), size_of(*head_),
            head_->flops(context) / static_cast<double>(context));
  table.row("model", "each tensor once", parameter_count(), flops(context) / static_cast<double>(context));
  out << table.out.str() << "\n";

  const Traits can = traits();
  out << (can.causal ? "causal" : "not causal") << "; " << (can.streams ? "streams" : "does not stream") << "; "
      << (can.bounded ? "state is bounded" : "state grows") << "; "
      << (can.relative ? "sees distances only" : "sees absolute positions") << "; "
      << (can.carries ? "training carries the state from step to step" : "training starts each step afresh") << "\n";
  if (can.context) out << "longest position: " << can.context << "\n";
  if (!can.why_not.empty()) out << "limits: " << can.why_not << "\n";
  if (!can.streams) return out.str();
  out << "state of one lane:";
  State state = start(1);
  for (const int64_t tokens : {int64_t{0}, context, 10 * context}) {
    if (can.context && tokens > can.context) {
      out << ", none past " << can.context << " tokens";
      break;
    }
    while (state.tensors.at("seen").item<int64_t>() < tokens) {
      Batch batch;
      batch.tokens = at::zeros({1, context}, state.tensors.at("seen").options());
      score(batch, &state);
    }
    out << (tokens ? ", " : " ") << state.bytes() << " bytes at " << tokens << " tokens";
  }
  out << "\n";
  return out.str();
}

}  // namespace kinfolk
