#include "cli/training.h"

#include <CLI/CLI.hpp>

#include "cli/command.h"
#include "kinfolk/core/errors.h"
#include "kinfolk/nn/model.h"

namespace kinfolk {
namespace {

namespace fs = std::filesystem;

std::string flag_of(std::string key) {
  std::replace(key.begin(), key.end(), '_', '-');
  return "--" + key;
}

}  // namespace

void TrainingFlags::add_to(CLI::App& command) {
  command.add_option("--data", data, "File or folder to learn from, any bytes")->required();
  command.add_option("--valid", valid,
                     "File or folder that validates (else the last 5 % of one file, or whole files of a folder)");
  command.add_option("--out", out, "Folder for the result")->required();
  command.add_option("--size", size, "Sizes: tiny, small, base, or the path of one")->capture_default_str();
  command.add_option("--budget", budget, "Trainable parameters, such as 10M: the width is solved for it");
  command.add_option("--set", sets, "key=value in the recipe, such as let.window=64; may be repeated")
      ->allow_extra_args(false);
  for (const auto& field : list_fields<TrainSettings>()) {
    const std::string key = field.key;
    const std::string about =
        field.about + (field.accepts.empty() ? "" : "; " + field.accepts) + " [" + field.standard + "]";
    if (field.type == "true or false") {
      command
          .add_flag_callback(
              flag_of(key), [this, key, on = field.standard != "true"] { settings[key] = on ? "true" : "false"; },
              field.standard == "true" ? "Do not: " + field.about : field.about)
          ->group("Training");
    } else {
      command
          .add_option_function<std::string>(
              flag_of(key), [this, key](const std::string& typed) { settings[key] = typed; }, about)
          ->type_name(field.type == "text" ? "TEXT" : "NUMBER")
          ->group("Training");
    }
  }
}

Corpus TrainingFlags::corpus() const { return read_corpus(data, valid); }

TrainSettings TrainingFlags::resolved(const Recipe& recipe, const Size& member_size) const {
  Value of_size{Value::Table{}};
  load_size(size, &of_size);
  Value table{Value::Table{}};
  for (const auto& field : list_fields<TrainSettings>()) {
    const auto typed = settings.find(field.key);
    if (typed == settings.end()) continue;
    const std::string origin = flag_of(field.key);
    Value value = field.type == "integer" || field.key == "work" ? Value(parse_count(typed->second, origin))
                                                                 : parse_value(typed->second, origin);
    value.place = {origin, 0, 0};
    table.set(field.key, value);
  }
  TrainSettings out = resolve_settings(of_size, recipe, member_size, table);
  out.seed += seed_offset;
  return out;
}

std::string TrainingFlags::budget_words(const Recipe& recipe, const Size& member_size) const {
  const TrainSettings s = resolved(recipe, member_size);
  if (s.minutes > 0) return text(s.minutes, " minutes of training steps each");
  if (s.work > 0) return text(human_count(s.work), " FLOP each");
  return text(human_count(static_cast<double>(s.tokens)), " tokens each");
}

RunSummary train_member(const Recipe& recipe, const Size& size, const Corpus& corpus, const TrainingFlags& flags,
                        bool resume) {
  TrainHooks hooks;
  hooks.resume = resume;
  hooks.title = flags.title;
  const TrainResult result = train(recipe, size, flags.resolved(recipe, size), corpus, flags.out, hooks);
  RunSummary out;
  for (const auto& row : result.validations)
    out.curve.push_back({static_cast<double>(row.tokens), row.seconds, row.bits});
  out.parameters = result.parameters;
  out.tokens = result.record.point.tokens;
  out.seconds = result.record.point.seconds;
  out.work = result.record.point.work;
  out.tokens_per_second = result.tokens_per_second;
  const Traits traits = result.model->traits();
  out.state_note = !traits.streams ? "whole sequence" : traits.bounded ? "constant" : "grows";
  if (result.record.point.skipped > 0) {
    out.warning = text(result.record.point.skipped, " steps were skipped: their gradient was not finite");
  }
  out.interrupted = !result.finished;
  out.exit_status = result.exit_status();
  return out;
}

void add_train(CLI::App& app, int& status) {
  struct Flags {
    TrainingFlags training;
    std::string recipe, resume;
  };
  auto flags = std::make_shared<Flags>();
  auto* command = app.add_subcommand("train", "Train one member; the run folder holds log, events, checkpoints");
  command->add_option("recipe", flags->recipe, "Name or path of a recipe")->required();
  flags->training.add_to(*command);
  command->add_option("--resume", flags->resume, "auto: go on with the run in --out, or start it when there is none")
      ->check(CLI::IsMember({"auto"}));
  command->callback([flags, &status] {
    auto& training = flags->training;
    const auto [recipe, size] = resolve(flags->recipe, training.size, training.sets, training.budget);
    training.title = "train " + recipe.name;
    const RunSummary run = train_member(recipe, size, training.corpus(), training, !flags->resume.empty());
    status = run.exit_status;
    std::printf("%s: %s parameters, %s tokens in %.1f s, %.4f bits per byte held out\n", recipe.name.c_str(),
                human_count(static_cast<double>(run.parameters)).c_str(),
                human_count(static_cast<double>(run.tokens)).c_str(), run.seconds,
                run.curve.empty() ? std::nan("") : run.curve.back().bits);
    std::printf("%s\n", fs::absolute(training.out).lexically_normal().string().c_str());
  });
}

}  // namespace kinfolk
