#include "kinfolk/nn/context.h"

#include "kinfolk/core/errors.h"
#include "kinfolk/nn/family.h"

namespace kinfolk {

Tensor draw_parameter(const Context& context, at::IntArrayRef sizes, double deviation) {
  Tensor t = at::zeros(sizes, context.like);
  if (deviation != 0 && !t.is_meta()) {
    // Drawn in double on the CPU, so that the same seed gives the same model in every type and on every device.
    const Tensor values =
        at::normal(0.0, deviation, sizes, context.generator.defined() ? std::optional(context.generator) : std::nullopt,
                   at::TensorOptions().dtype(at::kDouble));
    t.copy_(values);
  }
  return t.set_requires_grad(true);
}

Tensor fill_parameter(const Context& context, at::IntArrayRef sizes, double value) {
  return at::full(sizes, value, context.like).set_requires_grad(true);
}

std::shared_ptr<torch::nn::Module>& shared_place(const Context& context, const Value& share, const Value& table,
                                                 const std::string& path) {
  const auto* name = share.as<std::string>();
  if (!name || name->empty()) refuse(share.place.text(), "[", path, ".share] expected a name; found ", share.kind());
  const std::string key = *name + " " + write_toml_value(table);
  const auto near = context.shared->lower_bound(*name + " ");
  if (near != context.shared->end() && near->first.rfind(*name + " ", 0) == 0 && near->first != key) {
    refuse(share.place.text(), "[", path, ".share] expected the options that ", *name, " was first used with, ",
           near->first.substr(name->size() + 1), "; found ", write_toml_value(table));
  }
  return (*context.shared)[key];
}

void add_loss(Pass& pass, const std::string& name, const Tensor& value) {
  if (!pass.losses) return;
  Tensor& sum = (*pass.losses)[name];
  sum = sum.defined() ? sum + value : value;
}

Form choose_form(const Pass& pass, int64_t length, bool has_state, int64_t chunk) {
  if (pass.form != Form::automatic) return pass.form;
  if (length == 1 && has_state) return Form::step;
  return length <= chunk && !has_state ? Form::parallel : Form::chunked;
}

Tensor dropout(const Tensor& x, double p, bool training, Pass& pass) {
  if (!training || p <= 0) return x;
  auto generator = at::detail::createCPUGenerator(pass.seed * 0x9E3779B97F4A7C15ull + ++pass.draws);
  if (!x.is_cpu()) {
    const Tensor kept =
        at::empty(x.sizes(), x.options().device(at::kCPU).dtype(at::kFloat)).bernoulli_(1 - p, generator);
    return x * (kept / (1 - p)).to(x.options());
  }
  return x * at::empty(x.sizes(), x.options()).bernoulli_(1 - p, generator).div_(1 - p);
}

Tensor mask_invalid(const Tensor& x, const Pass& pass) {
  if (!pass.valid.defined()) return x;
  Tensor mask = pass.valid.logical_not();
  while (mask.dim() < x.dim()) mask = mask.unsqueeze(-1);
  return x.masked_fill(mask, 0);
}

}  // namespace kinfolk
