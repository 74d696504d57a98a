#include "cli/store.h"

#include <cinttypes>
#include <cstdio>
#include <iostream>
#include <optional>

#include "kinfolk/core/errors.h"
#include "kinfolk/eval/perplexity.h"
#include "kinfolk/train/progress.h"

namespace kinfolk {
namespace {

/// The bytes that the run was trained on, when they are still what they were.
std::optional<Bytes> training_text(const RunRecord& record) {
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

}  // namespace

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

void prepare_store(LoadedRun& run, const std::string& given) {
  Head& head = run.model->head();
  if (!head.wants_store()) {
    if (!given.empty()) refuse("[--store] expected a member with a datastore; found ", run.record.recipe.name);
    return;
  }
  if (given == "none") {
    std::cerr << "no datastore: the wrapped head answers alone\n";
    return;
  }
  std::optional<Bytes> bytes = given.empty() ? training_text(run.record) : read_text(given).bytes;
  if (!bytes) {
    refuse("[--store] expected the training text ", run.record.data, " as it was; found it gone or changed (--store ",
           "PATH: another text; --store none: the wrapped head alone)");
  }
  Progress progress("store", 1.0);
  fill_store(*run.model, *bytes, kStored, [&](double share) { progress.update(share); });
}

}  // namespace kinfolk
