#include "cli/store.h"

#include <cinttypes>
#include <cstdio>
#include <iostream>
#include <optional>

#include "kinfolk/core/errors.h"
#include "kinfolk/core/options.h"
#include "kinfolk/eval/remember.h"
#include "kinfolk/nn/head/knn_lm.h"
#include "kinfolk/nn/head/spalm.h"
#include "kinfolk/train/progress.h"

namespace kinfolk {
namespace {

/// The bytes that the run was trained on, when they are still what they were.
std::optional<std::vector<uint8_t>> training_text(const RunRecord& record) {
  const auto same = [&](const Text& text) {
    char print[24];
    std::snprintf(print, sizeof print, "%016" PRIx64, text.fingerprint());
    return record.fingerprint == print;
  };
  try {
    if (Corpus corpus = read_corpus(record.data); same(corpus.train)) return std::move(corpus.train.bytes);
    if (Text whole = read_text(record.data); same(whole)) return std::move(whole.bytes);  // trained with --valid
  } catch (const Error&) {  // gone, or no longer readable: said by the caller
  }
  return std::nullopt;
}

/// Is it `head.X=...` with X an option of knn_lm?
bool of_knn_lm(const std::string& set) {
  const std::string key = set.substr(0, set.find('='));
  for (const auto& field : list_fields<KnnLm::Options>())
    if (key == "head." + field.key && field.key != "base") return true;
  return false;
}

bool retrieves(const LoadedRun& run) { return dynamic_cast<Retrieves*>(&run.model->head()) != nullptr; }

void attach(LoadedRun& run, const std::string& given, const std::vector<std::string>& sets,
            std::span<const uint8_t> scored) {
  auto store = Datastore::open(given);
  check_keys(*run.model, *store);
  attach_store(*run.model, store, set_in_head(sets));
  auto& head = dynamic_cast<Retrieves&>(run.model->head());
  auto own = own_entries(*store, scored);
  int64_t places = 0;
  for (const auto& one : own) places += one.length;
  std::cerr << given << ": " << head.retriever().search()->words();
  if (const auto* knn = dynamic_cast<KnnLm*>(&run.model->head())) {
    const auto& o = knn->options();
    std::cerr << ", k " << o.k << ", lambda " << o.lambda << ", temperature " << o.temperature;
  }
  if (places > 0) std::cerr << "; " << places << " entries are of the text that is read, each left out at its place";
  std::cerr << "\n";
  head.retriever().exclude(std::move(own));
}

}  // namespace

std::vector<std::string> set_in_head(const std::vector<std::string>& sets) {
  std::vector<std::string> out;
  for (const auto& set : sets)
    if (set.rfind("head.", 0) == 0) out.push_back(set.substr(5, set.find('=') - 5));
  return out;
}

void refuse_store_of_images(const LoadedRun& run, const std::string& given) {
  const bool wants = run.model->head().wants_store();
  if (!wants && !given.empty()) {
    refuse("[--store] expected a member with a datastore; found ", run.record.recipe.name);
  }
  if (wants && given != "none") {
    refuse("[--store] expected none, since a datastore is filled from text alone; found ",
           given.empty() ? "nothing" : given);
  }
}

void retrieve_while_training(TrainHooks& hooks, const std::string& store) {
  const auto kept = Datastore::open(store);
  hooks.on_model = [kept](Model& model) {
    check_keys(model, *kept);
    attach_store(model, kept);
  };
  // Found once for each of the two texts.
  auto own = std::make_shared<std::map<const Text*, std::vector<OwnRun>>>();
  hooks.on_text = [kept, own](Model& model, const Text& text) {
    auto found = own->find(&text);
    if (found == own->end()) found = own->emplace(&text, own_entries(*kept, text.bytes)).first;
    dynamic_cast<Retrieves&>(model.head()).retriever().exclude(found->second);
  };
}

void check_learns_to_retrieve(const Recipe& recipe, const Size& size) {
  const auto model = Model::make(recipe, size, 1, at::TensorOptions().device(at::kMeta));
  if (dynamic_cast<Spalm*>(&model->head())) return;
  refuse("[--store] expected a member that learns to retrieve, spalm; found ", recipe.name,
         " (knn_lm and other members retrieve without training: kinfolk eval RUN --store D)");
}

LoadedRun load_with_store(const std::string& file, const std::vector<std::string>& sets, const std::string& given) {
  if (!Datastore::lies_in(given)) return load_run(file, true, sets);
  std::vector<std::string> of_model, of_head;
  for (const auto& set : sets) (of_knn_lm(set) ? of_head : of_model).push_back(set);
  LoadedRun run = load_run(file, true, of_model);
  if (retrieves(run)) return of_head.empty() ? std::move(run) : load_run(file, true, sets);
  const Datastore& store = *Datastore::open(given);
  Value table{Value::Table{}};
  table.set("metric", Value(store.about().metric));
  for (const auto& set : of_head) {
    const size_t equals = set.find('=');
    if (equals == std::string::npos) refuse("[--set] expected KEY=VALUE; found ", set);
    table.set(set.substr(5, equals - 5), parse_value(set.substr(equals + 1), "--set " + set));
  }
  const auto options = read_options<KnnLm::Options>(table, "head");
  run.model->wrap_head(
      [&](std::shared_ptr<Head> base) { return std::make_shared<KnnLm>(options, std::move(base), run.model->size()); });
  run.model->eval();
  return run;
}

void prepare_store(LoadedRun& run, const std::string& given, const std::vector<std::string>& sets,
                   std::span<const uint8_t> scored) {
  Head& head = run.model->head();
  if (Datastore::lies_in(given)) return attach(run, given, sets, scored);
  if (!head.wants_store()) {
    if (!given.empty()) {
      refuse("[--store] expected a datastore (kinfolk datastore build), or a member that keeps one; found ", given,
             " with ", run.record.recipe.name);
    }
    return;
  }
  if (given == "none") {
    std::cerr << "no datastore: the wrapped head answers alone\n";
    return;
  }
  const auto bytes = given.empty() ? training_text(run.record) : read_text(given).bytes;
  if (!bytes) {
    refuse("[--store] expected the training text ", run.record.data, " as it was; found it gone or changed (--store ",
           "PATH: another text; --store none: the wrapped head alone)");
  }
  Progress progress("store", 1.0);
  fill_store(*run.model, *bytes, kStored, [&](double share) { progress.update(share); });
  if (auto* kept = dynamic_cast<Retrieves*>(&head); kept && !scored.empty()) {
    const auto read = std::min(kStored + 1, static_cast<int64_t>(bytes->size()));
    const int64_t forgotten = read - 1 - kept->retriever().stored();  // beyond the head's capacity
    kept->retriever().exclude(own_runs(scored, std::span(*bytes).first(static_cast<size_t>(read)), -forgotten));
  }
}

}  // namespace kinfolk
