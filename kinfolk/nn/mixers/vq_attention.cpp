#include "kinfolk/nn/mixers/vq_attention.h"

#include "kinfolk/nn/memory/cache.h"
#include "kinfolk/nn/memory/newest.h"
#include "kinfolk/nn/mixers/vq_blocks.h"
#include "kinfolk/pattern/pattern.h"

namespace kinfolk {
namespace {

constexpr auto kKeys = "k", kValues = "v", kCode = "code", kAt = "at", kDocument = "document", kCount = "count",
               kMean = "mean", kOf = "of";

/// [B, L, H d] -> [B, H, L, d]
Tensor split_heads(const Tensor& x, int64_t d) { return x.unflatten(-1, {-1, d}).transpose(1, 2); }

/// t [B, H, C(, d)] at the columns int64 [B, n].
Tensor at_columns(const Tensor& t, const Tensor& columns) {
  const int64_t B = t.size(0), H = t.size(1), n = columns.size(1);
  if (t.dim() == 3) return t.gather(2, columns.unsqueeze(1).expand({B, H, n}));
  return t.gather(2, columns.unsqueeze(1).unsqueeze(-1).expand({B, H, n, t.size(3)}));
}

}  // namespace

/// What the state kept and what the call brought.
struct VqAttention::Columns {
  Tensor k, v, code;    ///< [B, H, C + L, d], codes without d
  Tensor at, document;  ///< int64 [B, C + L]
  int64_t kept;         ///< columns of the state
};

VqAttention::VqAttention(const Options& options, const Context& context) : options_(options) {
  const int64_t width = context.size.width;
  heads_ = options.heads == 0 ? context.size.heads : options.heads;
  if (width % heads_ != 0) {
    fail("[", context.path, ".heads] expected a divisor of the width ", width, "; found ", heads_);
  }
  width_ = width / heads_;
  q = register_module("q", std::make_shared<Linear>(context, width, width, false));
  k = register_module("k", std::make_shared<Linear>(context, width, width, false));
  v = register_module("v", std::make_shared<Linear>(context, width, width, false));
  out = register_module("out", std::make_shared<Linear>(context, width, width, false));
  if (options.gate == "silu") {
    gate = register_module("gate", std::make_shared<Linear>(context, width, width, false));
  }
  u = register_parameter("u", fill_parameter(context, {heads_, width_}, 0));
  // Keys have entries of mean 0 and variance d^-1/2; codewords begin like them, each as if it had one key.
  const double size = std::pow(static_cast<double>(width_), -0.25);
  sum = register_buffer("sum", draw_parameter(context, {heads_, options.codes, width_}, size).detach());
  count = register_buffer("count", at::ones({heads_, options.codes}, context.like));
  near_ = parse_pattern(text("causal & window(", 2 * options.block, ")"));

  Context mine = context;
  mine.heads = {.count = heads_, .groups = heads_, .width = width_, .scale = size};
  mine.heads.horizon = 2 * options.block;
  if (options.score.empty()) return;
  const auto list = register_module("score", std::make_shared<torch::nn::Module>("score"));
  for (size_t n = 0; n < options.score.size(); ++n) {
    const std::string path = text(context.path.empty() ? "" : context.path + ".", "score[", n, "]");
    score.push_back(registry<Score>().create(options.score[n], mine, path));
    if (score.back()->query_columns() > 0 || score.back()->adds_to_values()) {
      fail("[", path, "] expected a step that changes scores alone; found ", options.score[n].kind());
    }
    list->register_module(std::to_string(n), score.back());
  }
}

Traits VqAttention::traits() const {
  Traits traits;
  traits.bounded = true;
  traits.carries = true;
  traits.estimates = true;
  return traits;
}

std::vector<std::shared_ptr<const Pattern>> VqAttention::patterns() const { return {parse_pattern("causal")}; }

State VqAttention::start(int64_t batch, at::TensorOptions like) const {
  const auto whole = like.dtype(at::kLong);
  const int64_t columns = 2 * options_.block - 1;
  State state;
  auto& t = state.tensors;
  t[kKeys] = at::zeros({batch, heads_, columns, width_}, like);
  t[kValues] = at::zeros({batch, heads_, columns, width_}, like);
  t[kCode] = at::zeros({batch, heads_, columns}, whole);
  t[kAt] = at::full({batch, columns}, -1, whole);
  t[kDocument] = at::zeros({batch, columns}, whole);
  t[kCount] = at::zeros({batch, heads_, options_.codes}, whole);
  t[kMean] = at::zeros({batch, heads_, options_.codes, width_}, like);
  t[kOf] = at::zeros({batch, 1}, whole);
  return state;
}

double VqAttention::flops(int64_t length, int64_t from) const {
  double near = 0;
  for (int64_t t = from; t < from + length; ++t) {
    near += static_cast<double>(t % options_.block + 1 + (t < options_.block ? 0 : options_.block));
  }
  const auto D = static_cast<double>(heads_ * width_), codes = static_cast<double>(options_.codes * length);
  return q->flops(length) + k->flops(length) + v->flops(length) + out->flops(length) +
         (gate ? gate->flops(length) : 0) + 4 * near * D + 6 * codes * D;
}

std::string VqAttention::explain() const {
  const auto like = at::TensorOptions().dtype(u.dtype());
  const Tensor some = at::zeros({1, heads_, 2, width_}, like);
  AttendPlan plan;
  plan.pattern = near_;
  for (const auto& step : score) plan.score.push_back(step.get());
  std::string line = text("attend(", near_->text(), ") of codewords");
  const auto reasons =
      why_not_fused({{some}}, {{some, some, at::arange(2, like.dtype(at::kLong)).unsqueeze(0), {}, {}, {}}}, plan);
  line += reasons.empty() ? ", fused" : ", tiled torch operators: ";
  for (size_t n = 0; n < reasons.size(); ++n) line += (n ? "; " : "") + reasons[n];
  return text(line, "; older keys by ", options_.codes, " codes a head, torch operators");
}

Tensor VqAttention::forward(const Tensor& given, Pass& pass, State* state) {
  if (given.size(1) == 0) return given;
  if (!pass.position.defined()) fail("[vq] expected positions in the pass; found none");
  const Tensor x = mask_invalid(given, pass);
  const double size = std::pow(static_cast<double>(width_), -0.25);
  const auto normalised = [&](const Linear& project) {
    return at::layer_norm(split_heads(project.forward(x), width_), {width_}) * size;  // [B, H, L, d]
  };
  const Tensor queries = normalised(*q), keys = normalised(*k);
  Tensor values = split_heads(v->forward(x), width_);
  if (gate) values = at::silu(values);

  Tensor joined = read(queries, keys, values, pass, state).transpose(1, 2).flatten(2);  // [B, L, D]
  if (gate) joined = joined * at::silu(gate->forward(x));
  return mask_invalid(out->forward(joined), pass);
}

Tensor VqAttention::read(const Tensor& queries, const Tensor& keys, const Tensor& values, Pass& pass, State* state) {
  State whole;
  const bool carried = state != nullptr;
  if (!carried) state = &whole;
  if (state->tensors.empty()) *state = start(keys.size(0), keys.options());
  auto& kept = state->tensors;
  const auto kind = kept.at(kKeys).scalar_type();  // not that of fresh keys under autocast
  const Tensor words = codebook(), code = nearest_code(keys, words),
               chosen = codewords(words, code).to(keys.scalar_type());
  const Tensor apart = (keys - chosen).square().sum(-1);  // [B, H, L]
  add_loss(pass, "commitment",
           pass.valid.defined() ? (apart * pass.valid.to(apart.scalar_type()).unsqueeze(1)).sum() /
                                      (pass.valid.sum().clamp_min(1) * heads_)
                                : apart.mean());
  if (is_training()) learn(keys, code, pass);

  Columns all;
  all.kept = kept.at(kAt).size(1);
  all.k = at::cat({kept.at(kKeys), straight_through(keys, chosen).to(kind)}, 2);
  all.v = at::cat({kept.at(kValues), values.to(kind)}, 2);
  all.code = at::cat({kept.at(kCode), code}, 2);
  all.at = at::cat({kept.at(kAt), valid_positions(pass)}, 1);
  all.document = at::cat({kept.at(kDocument), documents(pass)}, 1);
  const Tensor content = queries + u.unsqueeze(1);
  const Read far = read_far(all, content, *state);
  if (carried) {
    const Newest newest(all.at, all.kept, pass.valid.defined() && !pass.valid.all().item<bool>());
    for (const auto& [name, tensor] : {std::pair{kKeys, all.k}, {kValues, all.v}, {kCode, all.code}}) {
      kept[name] = newest.keep(tensor, 2);
    }
    kept[kAt] = newest.keep(all.at, 1);
    kept[kDocument] = newest.keep(all.document, 1);
  }
  const Read near = read_near(all, content, queries, pass);
  if (!far.out.defined()) return near.out;
  return join(near, {far.out.to(near.out.scalar_type()), far.lse.to(near.lse.scalar_type())}).out;
}

Read VqAttention::read_near(const Columns& all, const Tensor& content, const Tensor& raw, const Pass& pass) {
  const Tensor position = valid_positions(pass);
  Keys keys{all.k.to(content.scalar_type()), all.v.to(content.scalar_type()), all.at, {}, {}, {}};
  if (pass.document.defined()) keys.document = all.document;
  keys.from = (pass.position.div(options_.block, "floor") - 1) * options_.block;
  AttendPlan plan;
  plan.pattern = near_;
  for (const auto& step : score) plan.score.push_back(step.get());
  return attend({QueryBand{.q = content, .scale = 1}}, raw, position, pass.document, {keys}, {{KeyBand{keys.k}}}, plan);
}

Read VqAttention::read_far(const Columns& all, const Tensor& content, State& state) const {
  auto& kept = state.tensors;
  const BlockPlan plan = plan_blocks(all.at, all.document, all.kept, options_.block, kept.at(kOf));
  kept[kOf] = plan.of;
  CodeSums sums{kept.at(kCount), kept.at(kMean)};
  // Taken apart once: a slice for each block would make a gradient of the whole length for each.
  std::vector<Tensor> leaving, asking;
  for (const BlockStep& step : plan.steps) {
    if (step.keys.defined()) leaving.push_back(step.keys);
    if (step.queries.defined()) asking.push_back(step.queries);
  }
  const auto parts = [](const Tensor& t, const std::vector<Tensor>& columns) {
    if (columns.empty()) return std::vector<Tensor>();
    std::vector<int64_t> sizes;
    for (const Tensor& some : columns) sizes.push_back(some.size(1));
    return at_columns(t, at::cat(columns, 1)).split_with_sizes(sizes, 2);
  };
  const auto values = parts(all.v, leaving), codes = parts(all.code, leaving), queries = parts(content, asking);
  const Tensor words = codebook();
  std::vector<Tensor> reads, normalisers;
  size_t left = 0;
  bool any = !leaving.empty() || sums.count.any().item<bool>();
  for (const BlockStep& step : plan.steps) {
    if (step.keys.defined()) {
      sums = add_codes(sums, step.keep, codes[left], values[left], step.taken);
      ++left;
    }
    if (!any || !step.queries.defined()) continue;
    const Read read = read_codes(queries[reads.size()], words, sums, step.seen);
    reads.push_back(read.out);
    normalisers.push_back(read.lse);
  }
  kept[kCount] = sums.count;
  kept[kMean] = sums.mean.to(kept.at(kMean).scalar_type());
  if (reads.empty()) return {};
  const Tensor invalid = all.at.narrow(1, all.kept, content.size(2)).lt(0).unsqueeze(1);
  return {at_columns(at::cat(reads, 2), plan.order),
          at_columns(at::cat(normalisers, 2), plan.order).masked_fill(invalid, -INFINITY)};
}

void VqAttention::learn(const Tensor& keys, const Tensor& code, Pass& pass) {
  const uint64_t draw = pass.seed * 0x9E3779B97F4A7C15ull + ++pass.draws;
  if (!pass.updates) return;
  const at::NoGradGuard guard;
  const Tensor own = keys.detach().to(sum.scalar_type());
  const CodeStatistics found = code_statistics(own, code, options_.codes, pass.valid);
  Tensor spare;  // [H, S, d], a random key for each codeword, should it need one
  const Tensor valid = pass.valid.defined() ? pass.valid : at::ones(pass.position.sizes(), at::kBool);
  const Tensor tokens = valid.reshape(-1).nonzero().squeeze(1);
  if (tokens.numel() == 0) return;
  if (options_.dead > 0) {
    auto generator = at::detail::createCPUGenerator(draw);
    const Tensor drawn = at::randint(tokens.numel(), {options_.codes}, generator, at::kLong).to(tokens.device());
    spare = own.transpose(0, 1).reshape({heads_, -1, width_}).index_select(1, tokens.index_select(0, drawn));
  }
  pass.updates->push_back(
      [counts = count, sums = sum, found, spare, decay = options_.decay, dead = options_.dead]() mutable {
        const at::NoGradGuard still;
        move_codes(counts, sums, found, decay);
        if (!spare.defined()) return;
        const Tensor mean = counts.mean(1, true);      // [H, 1]
        const Tensor unused = counts.lt(mean * dead);  // [H, S]
        counts.copy_(at::where(unused, mean, counts));
        sums.copy_(at::where(unused.unsqueeze(-1), spare * mean.unsqueeze(-1), sums));
      });
}

}  // namespace kinfolk
