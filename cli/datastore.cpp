// datastore: hidden states of a text with what followed them, on disk; for kNN-LM and SPALM.
#include <iostream>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "cli/command.h"
#include "kinfolk/core/errors.h"
#include "kinfolk/eval/remember.h"
#include "kinfolk/eval/tune_store.h"
#include "kinfolk/nn/fingerprint.h"
#include "kinfolk/nn/head/spalm.h"
#include "kinfolk/nn/retrieve/search.h"
#include "kinfolk/nn/retrieve/writer.h"
#include "kinfolk/train/checkpoint.h"
#include "kinfolk/train/data/bytes.h"
#include "kinfolk/train/progress.h"

namespace kinfolk {
namespace {

namespace fs = std::filesystem;

struct Flags {
  std::string store, run, data, checkpoint = "last", type = "float16", metric = "squared", kind = "graph", text, ks;
  std::string search = "exact";
  int64_t tokens = 0, links = GraphOptions{}.links, candidates = GraphOptions{}.candidates, effort = 0;
  int64_t code = IvfPqOptions{}.bytes, cells = 0;
  std::vector<std::string> sets;
  bool whole = false, json = false, leave = false;
};

LoadedRun load_text_run(const std::string& file, const std::vector<std::string>& sets = {}) {
  LoadedRun run = load_run(file, true, sets);
  if (run.record.images.any()) refuse("[datastore] expected a run that was trained on text; found one of images");
  return run;
}

/// The part of a text that train learns from, or all of it.
Text text_of(const Flags& flags) {
  if (flags.whole) return read_text(flags.data, {2, 0});
  Corpus corpus = read_corpus(flags.data);
  if (corpus.images.any() || corpus.recall.any()) refuse("[--data] expected a text; found images or a task");
  std::cerr << flags.data << ": " << corpus.split << "; what validates is left out (--whole: all of it)\n";
  return std::move(corpus.train);
}

void say_size(const Datastore& store) {
  std::printf("%s: %lld entries of %lld x %s, %s\n", store.folder().c_str(), static_cast<long long>(store.size()),
              static_cast<long long>(store.width()), store.about().type.c_str(),
              human_bytes(static_cast<double>(store.bytes())).c_str());
}

/// Reads the text into the writer, and makes it part of the store.
void store_all(Model& model, const Text& text, const Flags& flags, DatastoreWriter& writer) {
  const int64_t limit = flags.tokens > 0 ? flags.tokens : text.size();
  const double all = static_cast<double>(std::min(limit, text.size()));
  Progress progress("storing", 1.0);
  for (const auto& document : text.documents) {
    const auto bytes =
        std::span(text.bytes)
            .subspan(static_cast<size_t>(document.begin), static_cast<size_t>(document.end - document.begin));
    store_document(model, document.path, bytes, limit - writer.appended(), writer,
                   [&](double) { progress.update(static_cast<double>(writer.appended()) / all); });
  }
  progress.finish();
  writer.commit();
}

void index(const std::string& folder, const Flags& flags) {
  const auto store = Datastore::open(folder);
  Progress progress("index", 1.0);
  const auto say = [&](double share) { progress.update(share); };
  if (flags.kind == "ivf_pq") {
    build_ivf_pq(store, {flags.cells, flags.code}, say);
  } else {
    build_graph(store, {flags.links, flags.candidates}, say);
  }
}

void run_build(const Flags& flags) {
  if (Datastore::lies_in(flags.store)) {
    refuse("[--out] ", flags.store, ": expected a new folder; found a datastore (kinfolk datastore add adds to it)");
  }
  LoadedRun run = load_text_run(checkpoint_file(flags.run, flags.checkpoint), flags.sets);
  const Text text = text_of(flags);
  StoreManifest about;
  about.model = fingerprint(*run.model), about.recipe = run.record.recipe.name, about.run = fs::absolute(run.path);
  about.type = flags.type, about.metric = flags.metric;
  about.width = run.model->size().width, about.vocabulary = run.model->size().vocabulary;
  DatastoreWriter writer(flags.store, about);
  store_all(*run.model, text, flags, writer);
  say_size(*Datastore::open(flags.store));
}

void run_add(const Flags& flags) {
  const auto store = Datastore::open(flags.store);
  const std::string file = flags.run.empty() ? store->about().run : checkpoint_file(flags.run, flags.checkpoint);
  std::error_code error;
  if (!fs::exists(file, error)) {
    refuse("[datastore] expected the run that ", flags.store, " was built with at ", file,
           "; found none (--run RUN says where it is)");
  }
  LoadedRun run = load_text_run(file, flags.sets);
  check_keys(*run.model, *store);
  const Text text = text_of(flags);
  {
    DatastoreWriter writer(flags.store, read_manifest(flags.store));
    store_all(*run.model, text, flags, writer);
  }
  if (fs::exists(fs::path(flags.store) / "graph.hnsw", error)) index(flags.store, flags);
  say_size(*Datastore::open(flags.store));
}

void run_info(const Flags& flags) {
  const auto store = Datastore::open(flags.store);
  const StoreManifest& about = store->about();
  std::vector<std::string> ways = {"exact"};
  std::error_code error;
  if (fs::exists(fs::path(flags.store) / "graph.hnsw", error)) ways.push_back("graph");
  if (fs::exists(fs::path(flags.store) / "ivf_pq.faiss", error)) ways.push_back("ivf_pq");
  if (flags.json) {
    nlohmann::ordered_json out = {{"entries", store->size()}, {"width", about.width},
                                  {"type", about.type},       {"metric", about.metric},
                                  {"bytes", store->bytes()},  {"vocabulary", about.vocabulary},
                                  {"recipe", about.recipe},   {"model", about.model},
                                  {"run", about.run},         {"searches", ways}};
    for (const auto& one : store->texts()) out["texts"].push_back({{"path", one.path}, {"entries", one.count}});
    if (about.tuned.k > 0) {
      out["tuned"] = {{"k", about.tuned.k}, {"lambda", about.tuned.lambda}, {"temperature", about.tuned.temperature}};
    }
    std::cout << out.dump(1, ' ', false, nlohmann::json::error_handler_t::replace) << "\n";
    return;
  }
  say_size(*store);
  std::string words;
  for (const auto& way : ways) words += (words.empty() ? "" : ", ") + way;
  std::printf("model      %s, fingerprint %s\nrun        %s\ndistance   %s\nsearches   %s\n", about.recipe.c_str(),
              about.model.c_str(), about.run.c_str(), about.metric.c_str(), words.c_str());
  if (const Tuned& t = about.tuned; t.k > 0) {
    std::printf("tuned      k %lld, lambda %g, temperature %g: %.4f bits/byte on %s, %.4f without the store\n",
                static_cast<long long>(t.k), t.lambda, t.temperature, t.bits, t.text.c_str(), t.before);
  }
  std::printf("\n%12s  text\n", "entries");
  for (const auto& one : store->texts())
    std::printf("%12lld  %s\n", static_cast<long long>(one.count), one.path.c_str());
}

void print_points(const char* title, const std::vector<TunePoint>& points) {
  std::printf("\n%8s %12s %8s %10s   %s\n", "k", "temperature", "lambda", "bits/byte", title);
  for (const auto& p : points) {
    std::printf("%8lld %12g %8g %10.4f\n", static_cast<long long>(p.k), p.temperature, p.lambda, p.bits);
  }
}

void run_tune(const Flags& flags) {
  const auto store = Datastore::open(flags.store);
  LoadedRun run = load_text_run(checkpoint_file(flags.run, flags.checkpoint), flags.sets);
  if (dynamic_cast<Spalm*>(&run.model->head())) {
    refuse("[datastore.tune] expected a run without a gate, or knn_lm; found spalm, whose gate is learned by train");
  }
  check_keys(*run.model, *store);
  const Bytes text = flags.whole ? read_text(flags.text).bytes : read_corpus(flags.text).valid.bytes;
  const auto search = open_search(flags.search, store, flags.effort);
  TuneOptions options;
  options.tokens = flags.tokens > 0 ? flags.tokens : options.tokens;
  options.metric = store->about().metric;
  if (!flags.ks.empty()) options.ks = parse_counts(flags.ks, "--k");
  Progress progress("tuning", 1.0);
  options.progress = [&](double share) { progress.update(share); };
  const TuneResult result = tune_store(*run.model, *store, *search, text, options);
  progress.finish();
  const TunePoint& best = result.best;
  if (flags.json) {
    nlohmann::ordered_json out = {{"bits_per_byte_without", result.before},
                                  {"bits_per_byte", best.bits},
                                  {"gain_error", result.gain_error},
                                  {"tokens", result.tokens},
                                  {"entries", store->size()},
                                  {"k", best.k},
                                  {"temperature", best.temperature},
                                  {"lambda", best.lambda}};
    for (const auto& p : result.tried) out["tried"].push_back({p.k, p.temperature, p.lambda, p.bits});
    std::cout << out.dump(-1) << "\n";
  } else {
    std::printf("%lld bytes of %s, %s, mean distance to the nearest %.4g\n", static_cast<long long>(result.tokens),
                flags.text.c_str(), search->words().c_str(), result.distance);
    print_points("for each k the best of the others", result.by_k());
    print_points("for each temperature", result.by_temperature());
    print_points("for each lambda", result.by_lambda());
    std::printf("\nwithout the store %.4f bits/byte, with it %.4f (gain %.4f +- %s)\n", result.before, best.bits,
                result.before - best.bits, error_text(result.gain_error).c_str());
    std::printf("--set head.k=%lld --set head.temperature=%g --set head.lambda=%g\n", static_cast<long long>(best.k),
                best.temperature, best.lambda);
  }
  if (flags.leave) return;
  StoreManifest about = read_manifest(flags.store);
  about.tuned = {best.k, best.lambda, best.temperature, flags.text, best.bits, result.before};
  write_manifest(flags.store, about);
  std::cerr << "kept in " << flags.store << ": eval and generate with --store take these where nothing else is set\n";
}

void add_run(CLI::App& command, Flags& flags, bool required) {
  auto* run = required ? command.add_option("run", flags.run, "Folder of a run, or a checkpoint file")->required()
                       : command.add_option("--run", flags.run, "The run, when it is no longer where it was");
  run->type_name(required ? "" : "PATH");
  command.add_option("--checkpoint", flags.checkpoint, "last, best, or the name of a numbered one")
      ->capture_default_str()
      ->type_name("NAME");
  add_set(command, flags.sets, "Changes a setting of the recipe; may be repeated");
}

void add_data(CLI::App& command, Flags& flags) {
  command.add_option("--data", flags.data, "File or folder; the part of it that train learns from is stored")
      ->required()
      ->type_name("PATH");
  command.add_flag("--whole", flags.whole, "Store all of --data, what eval would score included");
  add_count(command, "--tokens", flags.tokens, 1, "Entries at most, from the beginning; without it all")
      ->default_str("");
}

void add_graph(CLI::App& command, Flags& flags) {
  add_count(command, "--links", flags.links, 2,
            "graph: links of an entry; more of them find more and take more memory");
  add_count(command, "--candidates", flags.candidates, 1, "graph: entries looked at to place one");
}

}  // namespace

void add_datastore(CLI::App& app, int&) {
  auto* command = app.add_subcommand(
      "datastore", "Keep the hidden states of a text with what followed them, and let runs retrieve from it");
  command->require_subcommand(1);
  command->footer(
      "A run that was trained is given a memory of any text, without training:\n"
      "  kinfolk datastore build runs/rope --data books --out stores/books\n"
      "  kinfolk datastore tune runs/rope --store stores/books --valid books\n"
      "  kinfolk eval runs/rope --data books --store stores/books\n"
      "  kinfolk datastore add stores/books --data letters        (a new domain)\n"
      "A store larger than memory is searched by blocks; `datastore index` makes a graph, which is searched faster:\n"
      "  kinfolk datastore index stores/books\n"
      "  kinfolk eval runs/rope --data books --store stores/books --set head.search=graph");

  const auto sub = [&](const char* name, const char* about, void (*run)(const Flags&)) {
    auto flags = std::make_shared<Flags>();
    auto* child = command->add_subcommand(name, about);
    child->callback([flags, run] { run(*flags); });
    return std::pair(child, flags);
  };
  {
    auto [child, flags] = sub("build", "Make a datastore of a run's hidden states of a text", run_build);
    add_run(*child, *flags, true);
    add_data(*child, *flags);
    child->add_option("--out", flags->store, "Folder for it, new or empty")->required()->type_name("PATH");
    add_choice(*child, "--type", flags->type, {"float32", "float16", "bfloat16"}, "How keys are stored");
    add_choice(*child, "--metric", flags->metric, {"squared", "l2"},
               "Which distance weighs neighbours: squared, |q - k|^2, or l2, |q - k|");
    child->footer("Example: kinfolk datastore build runs/rope --data BOOK.txt --out stores/book");
  }
  {
    auto [child, flags] = sub("add", "Add a text to a datastore; a graph that lies there goes on", run_add);
    child->add_option("store", flags->store, "Folder of a datastore")->required()->type_name("");
    add_run(*child, *flags, false);
    add_data(*child, *flags);
    add_graph(*child, *flags);
    child->footer("Example: kinfolk datastore add stores/book --data OTHER.txt --whole");
  }
  {
    auto [child, flags] = sub("info", "What a datastore holds", run_info);
    child->add_option("store", flags->store, "Folder of a datastore")->required()->type_name("");
    child->add_flag("--json", flags->json, "Print it as JSON");
    child->footer("Example: kinfolk datastore info stores/book");
  }
  {
    auto [child, flags] = sub("index", "Make what a faster search needs", [](const Flags& f) {
      index(f.store, f);
      say_size(*Datastore::open(f.store));
    });
    child->add_option("store", flags->store, "Folder of a datastore")->required()->type_name("");
    add_choice(*child, "--kind", flags->kind, {"graph", "ivf_pq"},
               "graph: links between near entries (hnswlib); ivf_pq: cells and codes (FAISS, where it was built in)");
    add_graph(*child, *flags);
    add_count(*child, "--cells", flags->cells, 1, "ivf_pq: cells; without it about 4 sqrt(entries)")->default_str("");
    add_count(*child, "--code", flags->code, 1, "ivf_pq: bytes of a code, a divisor of the width");
    child->footer("Example: kinfolk datastore index stores/book");
  }
  {
    auto [child, flags] = sub("tune", "Find k, temperature and lambda that serve best on a held-out text", run_tune);
    add_run(*child, *flags, true);
    child->add_option("--store", flags->store, "Folder of a datastore")->required()->type_name("PATH");
    child->add_option("--valid", flags->text, "File or folder; the part of it that train holds out is scored")
        ->required()
        ->type_name("PATH");
    child->add_flag("--whole", flags->whole, "Score all of --valid");
    add_count(*child, "--tokens", flags->tokens, 1, "Bytes scored at most; without it 8Ki")->default_str("");
    child->add_option("--k", flags->ks, "Values of k, a list; without it 1, 2, 4 ... 256")->type_name("LIST");
    add_choice(*child, "--search", flags->search, {"exact", "graph", "ivf_pq"}, "How the store is searched");
    add_count(*child, "--effort", flags->effort, 1, "graph: candidates of a query; ivf_pq: cells looked into")
        ->default_str("");
    child->add_flag("--leave", flags->leave, "Do not write the best into the store's manifest");
    child->add_flag("--json", flags->json, "Print all combinations as JSON");
    child->footer("Example: kinfolk datastore tune runs/rope --store stores/book --valid BOOK.txt");
  }
}

}  // namespace kinfolk
