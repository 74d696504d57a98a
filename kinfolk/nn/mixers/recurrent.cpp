#include "kinfolk/nn/mixers/recurrent.h"

#include "kinfolk/core/errors.h"
#include "kinfolk/nn/mixers/heads.h"

namespace kinfolk {

Ran run_cell(const Cell& cell, const Tensor& x, const Tensor& start, const ScanLanes& lanes) {
  const c10::impl::ExcludeDispatchKeyGuard own_type(c10::autocast_dispatch_keyset);
  const at::ScalarType type = scan_type(x);
  Tensor h = start.defined() ? start.to(type) : at::zeros({x.size(0), cell.hidden()}, x.options().dtype(type));
  if (x.size(1) == 0) return {x.new_zeros({x.size(0), 0, cell.hidden()}), h};
  Tensor given = x.to(type), skip, first = borders(lanes);
  if (lanes.valid.defined()) {
    skip = lanes.valid.logical_not().unsqueeze(-1);  // [B, L, 1]
    given = given.masked_fill(skip, 0);
  }
  std::vector<Tensor> all;
  for (const Tensor& in : cell.read(given).unbind(1)) {
    const auto t = static_cast<int64_t>(all.size());
    const Tensor before = first.defined() ? h.masked_fill(first.select(1, t).unsqueeze(-1), 0) : h;
    const Tensor next = cell.step(in, before);
    h = skip.defined() ? at::where(skip.select(1, t), before, next) : next;
    all.push_back(h);
  }
  const Tensor steps = at::stack(all, 1);  // [B, L, N]
  return {(skip.defined() ? steps.masked_fill(skip, 0) : steps).to(x.scalar_type()), h};
}

Recurrent::Recurrent(const Options& options, const Context& context) : kind_(options.cell.kind()) {
  const std::string path = text(context.path.empty() ? "" : context.path + ".", "cell");
  cell_ = register_module("cell", registry<Cell>().create(options.cell, context, path));
  if (cell_->written() != context.size.width) {
    out_ = register_module("out", std::make_shared<Linear>(context, cell_->written(), context.size.width, false));
  }
}

Traits Recurrent::traits() const {
  Traits traits;
  traits.bounded = traits.relative = traits.carries = true;
  return traits;
}

State Recurrent::start(int64_t batch, at::TensorOptions like) const {
  State state;
  state.tensors[kHidden] = at::zeros({batch, cell_->hidden()}, state_options(like));
  return state;
}

double Recurrent::flops(int64_t length, int64_t) const {
  return static_cast<double>(length) * cell_->flops() + (out_ ? out_->flops(length) : 0);
}

Tensor Recurrent::forward(const Tensor& x, Pass& pass, State* state) {
  const Ran ran = run_cell(*cell_, x, carried(state, kHidden), lanes_of(pass));
  if (state) state->tensors[kHidden] = ran.last;
  const Tensor y = cell_->write(ran.h);
  return mask_invalid(out_ ? out_->forward(y) : y, pass);
}

std::string Recurrent::explain() const {
  return text("the cell ", kind_, " token by token in torch operators: no form of it runs along the sequence at once");
}

}  // namespace kinfolk
