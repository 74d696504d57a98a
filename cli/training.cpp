#include "cli/training.h"

#include <iostream>

#include <CLI/CLI.hpp>

#include "cli/command.h"
#include "cli/store.h"
#include "kinfolk/core/errors.h"
#include "kinfolk/nn/model.h"
#include "kinfolk/objective/objective.h"
#include "kinfolk/train/data/images.h"
#include "kinfolk/train/data/recall.h"
#include "kinfolk/train/run_log.h"

namespace kinfolk {
namespace {

namespace fs = std::filesystem;

std::string flag_of(std::string key) {
  std::replace(key.begin(), key.end(), '_', '-');
  return "--" + key;
}

constexpr auto kGroup = "Training, with [standard values]; a size and a recipe may set others";
constexpr const char* kBudgets[] = {"tokens", "minutes", "work"};

}  // namespace

void TrainingFlags::add_to(CLI::App& command) {
  command
      .add_option(
          "--data", data,
          "File or folder to learn from: any bytes, text or not; or images, a .safetensors file with the tensor "
          "images U8 [N, rows, columns] or a folder with train.safetensors and valid.safetensors; or a task that is "
          "drawn, such as recall:mqar,pairs=8,length=64 (recall:selective_copy, recall:induction, recall:distance)")
      ->required()
      ->type_name("PATH");
  command
      .add_option("--valid", valid,
                  "File or folder to measure on, never trained on; without it the last 5 % of one file, or whole files "
                  "of a folder, are held out of --data")
      ->type_name("PATH");
  command.add_option("--out", out, "Folder for the result, made when it does not exist")->required()->type_name("PATH");
  command.add_option("--size", size, "How large: tiny, small, base, or the path of a .toml file like theirs")
      ->capture_default_str()
      ->type_name("NAME");
  command
      .add_option("--budget", budget, "Trainable parameters, such as 10M: the width is solved to meet it within 1 %")
      ->type_name("NUMBER");
  command
      .add_option("--state-budget", state_budget,
                  "Bytes of state of one lane, such as 64Ki, met within 10 % by the option that decides them: heads, "
                  "states of a channel, or the window")
      ->type_name("BYTES");
  add_set(command, sets,
          "Changes a setting of the recipe, such as let.window=64 (see kinfolk describe); may be repeated");
  for (const auto& field : list_fields<TrainSettings>()) {
    const std::string key = field.key;
    const std::string about =
        field.about + (field.accepts.empty() ? "" : "; " + field.accepts) + " [" + field.standard + "]";
    if (field.type == "true or false") {
      const bool off = field.standard == "true";
      command
          .add_flag_callback(
              off ? "--no-" + flag_of(key).substr(2) : flag_of(key),
              [this, key, off] { settings[key] = off ? "false" : "true"; }, (off ? "do not " : "") + field.about)
          ->group(kGroup);
    } else {
      command
          .add_option_function<std::string>(
              flag_of(key), [this, key](const std::string& typed) { settings[key] = typed; }, about)
          ->type_name(field.type == "text" ? "WORD" : "NUMBER")
          ->group(kGroup);
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
    const bool budget = std::find(std::begin(kBudgets), std::end(kBudgets), field.key) != std::end(kBudgets);
    Value value(typed->second);
    if (field.type == "integer" || field.key == "work") {
      value = Value(parse_count(typed->second, origin, budget ? 1 : 0));
    } else if (field.type == "number") {
      const double number = parse_number(typed->second, origin);
      if (budget && number <= 0) refuse("[", origin, "] expected more than 0; found ", typed->second);
      value = Value(number);
    } else if (field.type == "true or false") {
      value = Value(typed->second == "true");
    }
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

void meet_state_budget(Recipe& recipe, Size& size, const TrainingFlags& flags, const std::string& budget) {
  if (flags.state_budget.empty()) return;
  const int64_t bytes = parse_count(flags.state_budget, "--state-budget", 1);
  recipe = solve_state_budget(recipe, size, bytes);
  if (budget.empty()) return;
  // The option may change the parameters a little, and then the width the state.
  size = solve_budget(recipe, size, parse_count(budget, "--budget", 1));
  recipe = solve_state_budget(recipe, size, bytes);
}

std::pair<Recipe, Size> resolve_for(const Corpus& corpus, const std::string& recipe, const TrainingFlags& flags) {
  const bool decides = corpus.images.any() || corpus.recall.any();  // of the sizes
  auto out = resolve(recipe, flags.size, flags.sets, decides ? "" : flags.budget);
  if (!flags.from.empty() && !flags.size_given && flags.budget.empty()) {
    out.second = read_record(checkpoint_of(flags.from)).size;
  }
  out.second = size_for(size_for(out.second, corpus.images), corpus.recall);
  if (decides && !flags.budget.empty()) {
    out.second = solve_budget(out.first, out.second, parse_count(flags.budget, "--budget", 1));
  }
  meet_state_budget(out.first, out.second, flags, flags.budget);
  return out;
}

void check_plan(const Recipe& recipe, const Size& size, const Corpus& corpus, const TrainingFlags& flags) {
  const TrainSettings settings = flags.resolved(recipe, size);
  const auto model = Model::make(recipe, size, 1, at::TensorOptions().device(at::kMeta));
  const Traits traits = model->traits();
  if (traits.context > 0 && settings.length > traits.context) {
    refuse("[train.length] expected at most ", traits.context, ", the longest that ", recipe.name, " takes; found ",
           settings.length);
  }
  training_source(corpus, settings, model->grid());
}

RunSummary train_member(const Recipe& recipe, const Size& size, const Corpus& corpus, const TrainingFlags& flags,
                        bool resume) {
  TrainHooks hooks;
  hooks.resume = resume;
  hooks.title = flags.title;
  hooks.from = flags.from, hooks.freeze = flags.freeze;
  if (!flags.store.empty()) retrieve_while_training(hooks, flags.store);
  const TrainResult result = train(recipe, size, flags.resolved(recipe, size), corpus, flags.out, hooks);
  RunSummary out;
  for (const auto& row : read_log((fs::path(flags.out) / "log.jsonl").string()))
    if (!row.validation) out.curve.push_back({static_cast<double>(row.tokens), row.seconds, row.bits});
  if (!result.validations.empty()) {
    out.valid_bits = result.validations.back().bits, out.accuracy = result.validations.back().accuracy;
  }
  out.parameters = result.parameters;
  out.tokens = result.record.point.tokens;
  out.steps = result.record.point.step;
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
  auto* command = app.add_subcommand("train", "Train one member on a text");
  command->add_option("recipe", flags->recipe, "Name of a recipe (see kinfolk list), or the path of a .toml file")
      ->required()
      ->type_name("");
  flags->training.add_to(*command);
  add_choice(*command, "--resume", flags->resume, {"auto"},
             "auto: go on with the run in --out where it stopped, or start it when there is none");
  command
      ->add_option(
          "--from", flags->training.from,
          "A run, or a checkpoint file, whose tensors it begins with where names are the same; others are new. "
          "Without --size and --budget the size is that run's")
      ->type_name("RUN");
  command->add_flag("--freeze", flags->training.freeze, "With --from: what is taken from there stays as it is");
  command
      ->add_option("--store", flags->training.store,
                   "With --from, members that learn to retrieve (spalm): a datastore that was built from that run; all "
                   "but the gate is frozen, and no position finds its own entry")
      ->type_name("PATH");
  auto* size = command->get_option("--size");
  command->footer(
      "The folder --out then holds log.jsonl, TensorBoard events, the resolved settings, and checkpoints: last, best\n"
      "and, with --keep, numbered ones. The first Ctrl-C saves and ends; --resume auto goes on from there.\n"
      "Examples: kinfolk train rope --data BOOK.txt --out runs/rope --tokens 2M\n"
      "          kinfolk train qk_bias --from runs/rope --data BOOK.txt --out runs/qk_bias --tokens 1M\n"
      "          kinfolk train spalm --from runs/xl --store stores/book --data BOOK.txt --out runs/spalm --tokens "
      "200k");
  command->callback([flags, size, &status] {
    auto& training = flags->training;
    training.size_given = size->count() > 0;
    if (training.freeze && training.from.empty()) {
      refuse("[--freeze] expected it with --from, whose tensors stay as they are; found none");
    }
    if (!training.store.empty()) {
      if (training.from.empty()) {
        refuse("[--store] expected it with --from, the run whose hidden states are stored; found none");
      }
      training.freeze = true;  // the keys are hidden states of these layers
    }
    const Corpus corpus = training.corpus();
    const auto [recipe, size] = resolve_for(corpus, flags->recipe, training);
    training.title = "train " + recipe.name;
    if (!training.store.empty()) check_learns_to_retrieve(recipe, size);
    const RunSummary run = train_member(recipe, size, corpus, training, !flags->resume.empty());
    status = run.exit_status;
    std::printf("%s: %s parameters, %s tokens in %.1f s", recipe.name.c_str(),
                human_count(static_cast<double>(run.parameters)).c_str(),
                human_count(static_cast<double>(run.tokens)).c_str(), run.seconds);
    if (std::isfinite(run.valid_bits)) {
      std::printf(", %.4f bits per %s%s held out", run.valid_bits, make_objective(recipe)->asked(), corpus.unit());
    }
    if (std::isfinite(run.accuracy)) std::printf(", %.4f of them right", run.accuracy);
    std::printf("\n%s\n", fs::absolute(training.out).lexically_normal().string().c_str());
    if (run.interrupted) std::cerr << "stopped and saved; the same command with --resume auto goes on from here\n";
  });
}

}  // namespace kinfolk
