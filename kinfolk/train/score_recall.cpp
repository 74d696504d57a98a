#include "kinfolk/train/score_recall.h"

#include <numbers>

#include "kinfolk/core/errors.h"
#include "kinfolk/train/answers.h"
#include "kinfolk/train/data/recall.h"

namespace kinfolk {

RecallScore score_recall(Model& model, const RecallTask& task, int64_t examples,
                         const std::function<void(double share)>& progress) {
  if (task.vocabulary() != model.size().vocabulary) {
    refuse("[data] expected a task of the ", model.size().vocabulary, " tokens that the run was trained on; found ",
           task.vocabulary());
  }
  const Traits traits = model.traits();
  if (traits.context > 0 && task.length() > traits.context) {
    refuse("[data] expected examples of at most ", traits.context, " tokens, the longest this member takes; found ",
           task.length());
  }
  if (examples < 1) fail("[data] expected at least 1 example; found ", examples);
  model.eval();
  const RecallExamples source(task, held_out_seed(task), 1);
  Answers all;
  double squares = 0;  // of the shares of single examples
  for (int64_t i = 0; i < examples; i++) {
    if (progress) progress(static_cast<double>(i) / static_cast<double>(examples));
    Answers one;
    add_answers(one, model, source.at(i * task.length(), task.length()));
    all.count += one.count, all.right += one.right, all.loss += one.loss;
    squares += one.accuracy() * one.accuracy();
  }
  RecallScore score;
  score.examples = examples, score.answers = all.count;
  score.accuracy = all.accuracy();
  score.bits = all.loss / static_cast<double>(all.count) / std::numbers::ln2;
  const double n = static_cast<double>(examples), spread = squares / n - score.accuracy * score.accuracy;
  score.error = n > 1 ? std::sqrt(std::max(spread, 0.0) / (n - 1)) : std::nan("");
  if (traits.streams) {
    State state = model.start(1);
    model.score({source.at(0, task.length()).tokens, {}}, &state);
    score.state_bytes = state.bytes();
  }
  return score;
}

}  // namespace kinfolk
