#include "kinfolk/nn/head/spalm.h"

#include "kinfolk/core/errors.h"

namespace kinfolk {

Spalm::Spalm(const Options& options, const Context& context) : options_(options), table_(context.tied) {
  if (!table_.defined()) {
    refuse("[", context.path, "] expected an input with a table of tokens, whose rows are mixed in; found none");
  }
  base_ = registry<Head>().create(options.base, context, context.path + ".base");
  register_module("base", base_);
  gate_ = register_parameter("gate", fill_parameter(context, {context.size.width}, 0));
  const auto device = at::TensorOptions().device(context.like.device());
  const Tensor keys = register_buffer("keys", at::empty({0, context.size.width}, device.dtype(at::kFloat)));
  const Tensor tokens = register_buffer("tokens", at::empty({0}, device.dtype(at::kLong)));
  retriever_ = std::make_unique<Retriever>(keys, tokens, options.capacity, context.size.vocabulary, "spalm");
}

Mixed mix_retrieved(const Tensor& h, const Tensor& y, const Tensor& gate, const Tensor& none) {
  Tensor score = at::matmul(y, h.unsqueeze(-1)).squeeze(-1);  // [..., k]
  Tensor any;
  if (none.defined()) {
    any = none.logical_not().any(-1, true);  // [..., 1]
    score = score.masked_fill(none & any, -INFINITY);
  }
  Tensor weight = score.softmax(-1);
  if (none.defined()) weight = weight.masked_fill(none, 0);
  Mixed out;
  out.m = at::matmul(weight.unsqueeze(-2), y).squeeze(-2);  // [..., D]
  out.g = at::matmul(h, gate).sigmoid();                    // [...]
  const Tensor g = out.g.unsqueeze(-1);
  out.z = (1 - g) * out.m + g * h;
  if (none.defined()) out.z = at::where(any, out.z, h);
  return out;
}

Tensor Spalm::read(const Tensor& x, Pass& pass) {  // [B, L, D]
  if (retriever_->stored() == 0) return base_->read(x, pass);
  const bool frozen = retriever_->store() != nullptr;
  const Tensor h = (frozen ? x.detach() : x).reshape({-1, x.size(-1)});  // [M, D]
  const auto found = retriever_->find(h, options_.k, places_of(pass, h.size(0)));
  const Tensor table = frozen ? table_.detach() : table_, tokens = retriever_->tokens(found.index);  // [M, k]
  const Tensor y = table.index_select(0, tokens.flatten()).view({tokens.size(0), tokens.size(1), table.size(1)});
  const Tensor z = mix_retrieved(h, y.to(h.scalar_type()), gate_.to(h.scalar_type()), found.index.lt(0)).z;
  return base_->read(z.view(x.sizes()), pass);
}

bool Spalm::wants_store() const { return !gate_.is_meta() && gate_.ne(0).any().item<bool>(); }

double Spalm::flops(int64_t length) const {
  const auto width = static_cast<double>(gate_.numel()), k = static_cast<double>(options_.k);
  const auto met =
      static_cast<double>(retriever_->search() && options_.search != "exact" ? std::max(options_.effort, options_.k)
                                                                             : retriever_->stored());
  return base_->flops(length) + 2.0 * static_cast<double>(length) * width * (met + 2 * k + 1);
}

}  // namespace kinfolk
