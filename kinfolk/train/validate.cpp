#include "kinfolk/train/validate.h"

#include <algorithm>
#include <numbers>

#include "kinfolk/core/errors.h"
#include "kinfolk/train/answers.h"
#include "kinfolk/train/autocast.h"
#include "kinfolk/train/data/images.h"
#include "kinfolk/train/data/lanes.h"
#include "kinfolk/train/data/recall.h"

namespace kinfolk {
namespace {

/// Tokens of a lane, tokens of a call, and the order of a validation.
struct Reading {
  int64_t lanes, each, length;
  std::unique_ptr<Source> source;
};

Reading reading_of(const Corpus& corpus, const TrainSettings& settings, const ImageGrid& grid) {
  const Text& valid = corpus.valid;
  if (corpus.recall.any()) {
    const int64_t length = corpus.recall.length(), rounds = settings.eval_tokens / length / settings.lanes;
    return {settings.lanes, std::max<int64_t>(rounds, 1) * length, length,
            std::make_unique<RecallExamples>(corpus.recall, held_out_seed(corpus.recall), settings.lanes)};
  }
  if (corpus.images.any()) {
    const int64_t length = corpus.images.pixels(), held = static_cast<int64_t>(valid.documents.size());
    const int64_t images = std::clamp<int64_t>(settings.eval_tokens / length, 1, held);
    const int64_t calls = (images + settings.lanes - 1) / settings.lanes, lanes = images / calls;
    return {lanes, calls * length, length, std::make_unique<ImageRows>(valid, corpus.images, grid, lanes, false)};
  }
  const int64_t targets = valid.size() - 1;
  const int64_t lanes = std::clamp<int64_t>(targets / settings.length, 1, settings.lanes);
  const int64_t each = std::min(targets / lanes, std::max<int64_t>(settings.eval_tokens / lanes, 1));
  const int64_t length = std::min(settings.length, each);
  return {lanes, each, length, std::make_unique<Lanes>(valid, lanes, length, settings.documents)};
}

}  // namespace

std::optional<Validation> validate(Model& model, Objective& objective, const Corpus& corpus,
                                   const TrainSettings& settings, const std::function<bool()>& stop) {
  if (corpus.valid.size() < 2) fail("[data] expected at least 2 bytes that validate; found ", corpus.valid.size());
  struct Evaluating {
    Model& model;
    const bool was = model.is_training();
    explicit Evaluating(Model& m) : model(m) { model.eval(); }
    ~Evaluating() { model.train(was); }
  };
  const at::NoGradGuard no_grad;
  const Evaluating evaluating(model);
  const auto [lanes, each, length, source] = reading_of(corpus, settings, model.grid());
  const bool carries = model.traits().carries && !source->whole();
  State state;
  if (carries) state = model.start(lanes);
  Validation out;
  double sum = 0;
  Answers answers;
  for (int64_t at = 0; at < each; at += length) {
    if (stop && stop()) return std::nullopt;
    const Batch batch = source->at(at, std::min(length, each - at));
    Pass pass{batch};
    pass.state = carries ? &state : nullptr;
    std::map<std::string, Tensor> losses;
    pass.losses = &losses;
    const Autocast autocast(settings.precision == "bf16");
    if (corpus.recall.any()) {
      add_answers(answers, model, batch);
      continue;
    }
    const Loss loss = objective.loss(model, pass);
    if (loss.count > 0) sum += loss.sum.item<double>();
    out.tokens += loss.count;
  }
  if (answers.count > 0) sum = answers.loss, out.tokens = answers.count, out.accuracy = answers.accuracy();
  if (out.tokens > 0) out.loss = sum / static_cast<double>(out.tokens);
  out.bits = out.loss / std::numbers::ln2;
  return out;
}

}  // namespace kinfolk
