#include "kinfolk/nn/feed/chunked.h"

#include "kinfolk/core/errors.h"
#include "kinfolk/nn/recompute.h"

namespace kinfolk {
namespace {

Tensor columns(const Tensor& x, int64_t from, int64_t count) { return x.defined() ? x.narrow(1, from, count) : x; }

}  // namespace

Chunked::Chunked(const Options& options, const Context& context) : chunk_(options.chunk) {
  const std::string path = context.path.empty() ? "feed" : context.path + ".feed";
  feed_ = registry<Branch>().create(options.feed, context, path);
  for (const auto& child : feed_->named_children()) register_module(child.key(), child.value());
  for (const auto& parameter : feed_->named_parameters(false)) register_parameter(parameter.key(), parameter.value());
  const Traits traits = feed_->traits();
  if (!traits.streams || !traits.bounded) {
    fail("[", path, "] expected a branch with a bounded state or none, such as mlp, glu or separable; found ",
         options.feed.kind());
  }
}

void Chunked::train(bool on) {
  Branch::train(on);
  feed_->train(on);  // not registered itself: its parts are
}

Tensor Chunked::run(const Tensor& x, Pass& pass, State* state) const {
  if (!at::GradMode::is_enabled()) return feed_->forward(x, pass, state);
  const auto part = [feed = feed_](const std::vector<Tensor>& in, Pass& own, State* local) {
    return feed->forward(in[0], own, local);
  };
  return recompute_part(feed_, part, {x}, pass, state);
}

Tensor Chunked::forward(const Tensor& x, Pass& pass, State* state) {  // [B, L, D]
  const int64_t length = x.size(1), step = std::max<int64_t>(1, chunk_ / std::max<int64_t>(1, x.size(0)));
  if (length <= step) return feed_->forward(x, pass, state);
  State local;
  if (!state) local = feed_->start(x.size(0), x.options().requires_grad(false));
  State* carried = state ? state : local.empty() ? nullptr : &local;
  const auto pieces = x.split(step, 1);
  std::vector<Tensor> out;
  int64_t from = 0;
  for (const Tensor& piece : pieces) {
    const int64_t count = piece.size(1);
    Pass own = pass;
    own.position = columns(pass.position, from, count), own.valid = columns(pass.valid, from, count);
    own.document = columns(pass.document, from, count), own.first = columns(pass.first, from, count);
    out.push_back(run(piece, own, carried));
    pass.draws = own.draws;
    from += count;
  }
  return at::cat(out, 1);
}

std::string Chunked::explain() const { return text(feed_->explain(), ", in chunks of ", chunk_, " tokens"); }

}  // namespace kinfolk
