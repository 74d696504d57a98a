#include "kinfolk/nn/layer.h"

#include <set>

#include "kinfolk/core/errors.h"
#include "kinfolk/nn/recompute.h"

namespace kinfolk {
namespace {

struct Wiring {
  std::string norm = "before", norm_kind = "layer";
  Spec residual = "add";
  template <class Visit>
  void fields(Visit&& visit) {
    visit("norm", norm, "where the step is normalised", one_of({"before", "after", "both", "none"}));
    visit("norm_kind", norm_kind, "which normalisation", one_of({"layer", "rms"}));
    visit("residual", residual, "how the branch meets the stream");
  }
};

/// Fields of `table` over those already in `wiring`; other keys are left to others.
void read_wiring(Wiring& wiring, const Value& table, const Context& context) {
  FieldReader reader(table, context.path, &context.let);
  wiring.fields(reader);
}

std::string part(size_t step) { return "branch." + std::to_string(step); }

}  // namespace

Traits both(const Traits& a, const Traits& b) {
  Traits out;
  out.causal = a.causal && b.causal;
  out.streams = a.streams && b.streams;
  out.bounded = a.bounded && b.bounded;
  out.relative = a.relative && b.relative;
  out.carries = a.carries || b.carries;
  out.estimates = a.estimates || b.estimates;
  out.context = a.context && b.context ? std::min(a.context, b.context) : std::max(a.context, b.context);
  out.why_not = a.why_not;
  if (a.why_not.find(b.why_not) == std::string::npos) out.why_not += (a.why_not.empty() ? "" : "; ") + b.why_not;
  return out;
}

std::vector<std::pair<std::string, Tensor>> trainable(const torch::nn::Module& module) {
  std::vector<std::pair<std::string, Tensor>> out;
  std::set<const void*> seen;
  for (const auto& item : module.named_parameters())
    if (item.value().requires_grad() && seen.insert(item.value().unsafeGetTensorImpl()).second) {
      out.emplace_back(item.key(), item.value());
    }
  return out;
}

Layer::Layer(const Value& table, const Context& outer, const std::string& path) : table_(table) {
  Context context = outer;
  context.path = path;
  Wiring standard;
  FieldReader reader(table, path, &context.let);
  standard.fields(reader);
  reader.reserve("repeat");
  reader.reserve("branches");
  reader.finish();
  const Value* list = table.find("branches");
  const auto* entries = list ? list->as<Value::Array>() : nullptr;
  if (!entries || entries->empty()) {
    refuse((list ? list->place : table.place).text(), "[", path,
           ".branches] expected at least one [[layers.branches]]; ", "found ", list ? list->kind() : "none");
  }
  const auto branches = register_module("branches", std::make_shared<List>());
  const auto before = std::make_shared<List>(), after = std::make_shared<List>(), residuals = std::make_shared<List>();
  for (size_t i = 0; i < entries->size(); ++i) {
    const Value& entry = (*entries)[i];
    context.path = path + ".branches." + std::to_string(i);
    Wiring wiring = standard;
    read_wiring(wiring, entry, context);
    Step step;
    step.kind = Spec(entry).kind();
    step.branch = registry<Branch>().create(Spec(entry), context, context.path, {"norm", "norm_kind", "residual"});
    branches->add(i, step.branch);
    const int64_t width = context.size.width;
    if (wiring.norm == "before" || wiring.norm == "both") {
      before->add(i, step.norm_before = std::make_shared<Norm>(context, wiring.norm_kind, width));
    }
    if (wiring.norm == "after" || wiring.norm == "both") {
      after->add(i, step.norm_after = std::make_shared<Norm>(context, wiring.norm_kind, width));
    }
    step.residual = registry<Residual>().create(wiring.residual, context, context.path + ".residual");
    residuals->add(i, step.residual);
    steps_.push_back(std::move(step));
  }
  register_module("before", before);
  register_module("after", after);
  register_module("residuals", residuals);
}

State Layer::start(int64_t batch, at::TensorOptions like) const {
  State state;
  for (size_t i = 0; i < steps_.size(); ++i) {
    State own = steps_[i].branch->start(batch, like);
    if (!own.empty()) state.parts[part(i)] = std::move(own);
  }
  return state;
}

double Layer::flops(int64_t length, int64_t from) const {
  double sum = 0;
  for (const auto& step : steps_) sum += step.branch->flops(length, from);
  return sum;
}

Traits Layer::traits() const {
  Traits out = steps_[0].branch->traits();
  for (size_t i = 1; i < steps_.size(); ++i) out = both(out, steps_[i].branch->traits());
  return out;
}

Tensor Layer::run(Tensor x, Pass& pass, State* state, const Tensor& signal) {
  for (size_t i = 0; i < steps_.size(); ++i) {
    const Step& step = steps_[i];
    State* own = nullptr;
    if (state) {
      const auto found = state->parts.find(part(i));
      if (found != state->parts.end()) own = &found->second;
    }
    Tensor read = step.norm_before ? step.norm_before->forward(x) : x;
    if (i == 0 && signal.defined()) read = read + signal;
    x = step.residual->meet(x, step.branch->forward(read, pass, own));
    if (step.norm_after) x = step.norm_after->forward(x);
  }
  return x;
}

Tensor Layer::forward(Tensor x, Pass& pass, State* state, const Tensor& signal) {
  if (!checkpointing || !at::GradMode::is_enabled()) return run(x, pass, state, signal);
  std::vector<Tensor> inputs{x};
  if (signal.defined()) inputs.push_back(signal);
  const auto part = [this](const std::vector<Tensor>& in, Pass& own, State* local) {
    return run(in[0], own, local, in.size() > 1 ? in[1] : Tensor());
  };
  return recompute_part(shared_from_this(), part, std::move(inputs), pass, state);
}

}  // namespace kinfolk
