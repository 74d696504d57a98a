#include "cli/bench_approximate.h"

#include <iostream>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "cli/command.h"
#include "kinfolk/core/errors.h"
#include "kinfolk/core/file_writer.h"
#include "kinfolk/eval/approximate.h"
#include "kinfolk/eval/perplexity.h"
#include "kinfolk/train/checkpoint.h"
#include "kinfolk/train/data/images.h"
#include "kinfolk/train/data/recall.h"
#include "kinfolk/train/progress.h"

namespace kinfolk {
namespace {

struct ApproximateFlags {
  std::string run, data, checkpoint = "last", out;
  std::vector<std::string> only, sets;
  int64_t length = 0, windows = 4, seed = 1;
  bool whole = false, json = false;
};

/// So many windows of the text, evenly spaced.  int64 [windows, length]
Tensor windows_of(const Bytes& bytes, int64_t windows, int64_t length) {
  const auto size = static_cast<int64_t>(bytes.size());
  if (size < windows * length) {
    fail("[--data] expected at least ", windows, " windows of ", length, " bytes; found ", size, " bytes");
  }
  std::vector<int64_t> starts;
  for (int64_t n = 0; n < windows; ++n) starts.push_back(windows > 1 ? n * (size - length) / (windows - 1) : 0);
  return gather_tokens(bytes, starts, 0, length);
}

std::string fixed(double value) {
  char out[32];
  std::snprintf(out, sizeof out, value < 100 ? "%.4f" : "%.1f", value);
  return out;
}

nlohmann::ordered_json json_of(const ErrorOver& error) {
  return {{"error", error.mean}, {"spread", error.spread}, {"median", error.median}, {"by_layer", error.by_layer}};
}

void print_json(const WatchedAttention& watched, const Approximations& found) {
  nlohmann::ordered_json out;
  const Tensor& q = watched.layers[0].q;
  out["windows"] = q.size(0), out["length"] = q.size(2), out["heads"] = q.size(1), out["head_width"] = q.size(3);
  for (const auto& layer : watched.layers) out["layers"].push_back(layer.place);
  for (const auto& row : found.rows) {
    nlohmann::ordered_json one = {{"form", row.of->name}, {row.of->number, row.value}};
    one["against"] = exact_words(row.of->form);
    one.update(json_of(row.own));
    if (row.of->form != ExactForm::whole) one["to_the_model"] = json_of(row.causal);
    out["rows"].push_back(one);
  }
  for (const auto& form : found.forms) {
    out["exact_forms"].push_back({{"form", exact_words(form.form)}, {"to_the_model", json_of(form.error)}});
  }
  std::cout << out.dump(1) << "\n";
}

void print_table(const Approximations& found) {
  std::printf("%-12s %-9s %6s %9s %9s %9s %13s  %s\n", "form", "", "", "error", "+-", "median", "to the model",
              "measured against");
  for (const auto& row : found.rows) {
    const bool own = row.of->form == ExactForm::causal, whole = row.of->form == ExactForm::whole;
    std::printf("%-12s %-9s %6lld %9s %9s %9s %13s  %s\n", row.of->name.c_str(), row.of->number.c_str(),
                static_cast<long long>(row.value), fixed(row.own.mean).c_str(), fixed(row.own.spread).c_str(),
                fixed(row.own.median).c_str(), own || whole ? "" : fixed(row.causal.mean).c_str(),
                exact_words(row.of->form).c_str());
  }
  for (const auto& form : found.forms) {
    std::printf("exact, %s: %s +- %s from the model's own\n", exact_words(form.form).c_str(),
                fixed(form.error.mean).c_str(), fixed(form.error.spread).c_str());
  }
}

void run_approximate(const ApproximateFlags& flags) {
  std::vector<std::string> known;
  for (const auto& each : approximations()) known.push_back(each.name);
  for (const auto& name : flags.only) {
    if (std::find(known.begin(), known.end(), name) != known.end()) continue;
    refuse("[--only] expected a form below; found ", name, suggest(name, known));
  }
  if (holds_images(flags.data) || holds_recall(flags.data)) refuse("[--data] expected a text; found ", flags.data);
  auto loaded = load_run(checkpoint_file(flags.run, flags.checkpoint), true, flags.sets);
  check_form(loaded.record.images, Corpus{}, flags.data);
  const auto& record = loaded.record;
  const int64_t usual = record.settings.length > 0 ? record.settings.length : record.size.context;
  const Bytes bytes = flags.whole ? read_text(flags.data).bytes : read_corpus(flags.data).valid.bytes;
  const auto watched =
      watch_attention(*loaded.model, windows_of(bytes, flags.windows, flags.length > 0 ? flags.length : usual));
  for (const auto& why : watched.left_out) std::cerr << "left out: " << why << "\n";
  if (watched.layers.empty()) {
    fail("[bench approximate] expected a run with layers of plain causal softmax attention; found none in ", flags.run);
  }
  Progress progress("approximate", 1.0);
  const auto found = measure_approximations(watched.layers, flags.only, static_cast<uint64_t>(flags.seed),
                                            [&](double share) { progress.update(share); });
  progress.finish();
  if (!flags.out.empty()) {
    write_file(flags.out, approximation_charts(found, text("Relative error of approximations, ", record.recipe.name,
                                                           ", ", watched.layers[0].q.size(2), " tokens")));
  }
  if (flags.json) {
    print_json(watched, found);
  } else {
    print_table(found);
  }
}

}  // namespace

void add_bench_approximate(CLI::App& bench) {
  auto flags = std::make_shared<ApproximateFlags>();
  auto* command = bench.add_subcommand(
      "approximate", "How far LSH, routing, random features, low rank, codes and windows are from a run's attention");
  command->add_option("run", flags->run, "Folder of a run with plain softmax attention, or a checkpoint file")
      ->required()
      ->type_name("");
  command->add_option("--data", flags->data, "A text as for train; the part of it that train holds out is read")
      ->required()
      ->type_name("PATH");
  command->add_flag("--whole", flags->whole, "Windows of all of --data, not of the held-out part");
  command->add_option("--only", flags->only, "Forms (below), one or several; without it all")->type_name("NAME...");
  add_count(*command, "--length", flags->length, 2, "Bytes of a window; without it the trained length")
      ->default_str("");
  add_count(*command, "--windows", flags->windows, 1, "Windows, evenly spaced in the text");
  add_count(*command, "--seed", flags->seed, 0, "Of hashes, features, matrices and first centres");
  command->add_option("--checkpoint", flags->checkpoint, "last, best, or the name of a numbered one")
      ->capture_default_str()
      ->type_name("NAME");
  add_set(*command, flags->sets, "Changes a setting of the run's recipe; may be repeated");
  command->add_option("--out", flags->out, "Charts of the errors, an .svg file")->type_name("FILE");
  command->add_flag("--json", flags->json, "Print the result as JSON");
  std::string forms = "Forms:\n";
  for (const auto& each : approximations()) {
    forms += "  " + each.name + std::string(13 - each.name.size(), ' ') + each.about + "\n";
  }
  command->footer(
      forms +
      "The run reads the windows, each from nothing; queries, keys and values of its attention layers, "
      "after positions,\n"
      "are what all forms are given. error: |form - exact| / |exact| of what a head reads in a window "
      "(Frobenius), mean\n"
      "standard deviation and median over layers, heads and windows. LSH and RFA change the attention before they "
      "approximate\n"
      "it: their error is to that form computed exactly, and beside it to the model's own.\n"
      "Example: kinfolk bench approximate runs/rope --data BOOK.txt --out errors.svg");
  command->callback([flags] { run_approximate(*flags); });
}

}  // namespace kinfolk
