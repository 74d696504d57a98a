#include "kinfolk/train/answers.h"

#include "kinfolk/core/errors.h"

namespace kinfolk {

void add_answers(Answers& sum, Model& model, const Batch& batch) {
  const at::NoGradGuard no_grad;
  const Tensor target = batch.fact("target");
  if (!target.defined()) fail("[answers] expected the fact target; found none");
  Pass pass{batch};
  const Tensor x = model.hidden(pass);                                  // [B, L, D]
  const Tensor rows = (target != -100).flatten().nonzero().squeeze(1);  // [n]
  if (rows.size(0) == 0) return;
  const Tensor wanted = target.flatten().index_select(0, rows);
  const Tensor asked = x.flatten(0, 1).index_select(0, rows).unsqueeze(0);                          // [1, n, D]
  const Tensor log_p = at::log_softmax(model.head().read(asked, pass).squeeze(0), -1, at::kFloat);  // [n, V]
  sum.count += rows.size(0);
  sum.right += log_p.argmax(-1).eq(wanted).sum().item<int64_t>();
  sum.loss -= log_p.gather(1, wanted.unsqueeze(1)).sum(at::kDouble).item<double>();
}

}  // namespace kinfolk
