#include "kinfolk/nn/mixers/lsh_attention.h"

#include "kinfolk/core/errors.h"
#include "kinfolk/nn/mixers/heads.h"
#include "kinfolk/ops/angular_hash.h"

namespace kinfolk {
namespace {

constexpr int64_t kColumns = 64;  ///< of a factor of the rotations, at most

/// The power of two from this on.
int64_t power_from(int64_t n) {
  int64_t p = 2;
  while (p < n) p *= 2;
  return p;
}

}  // namespace

LshAttention::LshAttention(const Options& options, const Context& context)
    : options_(options), heads_(head_count(options.heads, context)), width_(context.size.width / heads_) {
  const int64_t D = context.size.width, n = options.bucket_count, most = 2 * kColumns;
  if (options.rounds > 16) fail("[", context.path, ".rounds] expected at most 16; found ", options.rounds);
  if (n % 2 != 0 || (n > most && (n % (2 * most) != 0 || n > most * most))) {
    fail("[", context.path, ".bucket_count] expected an even number up to ", most, ", or a multiple of ", 2 * most,
         " up to ", most * most, "; found ", n);
  }
  if (by_bucket() && (options.buckets != "same" || options.wrap != "none")) {
    refuse("[", context.path, ".chunks] expected sorted with buckets across or a wrap; found bucket");
  }
  cache_ = {heads_, width_, options.rounds};
  usual_ = power_from((context.size.context + options.chunk - 1) / options.chunk);
  q = register_module("q", std::make_shared<Linear>(context, D, D, options.bias));
  v = register_module("v", std::make_shared<Linear>(context, D, D, options.bias));
  out = register_module("out", std::make_shared<Linear>(context, D, D, options.bias));
  const int64_t factors = n == 0 || n > most ? 2 : 1, columns = n == 0 ? kColumns : std::min(n / 2, kColumns);
  Tensor turned = at::zeros({heads_, options.rounds, factors, width_, columns}, context.like);
  rotations = register_buffer("rotations", turned);
  if (!turned.is_meta()) turned.copy_(draw(context.generator));
}

Tensor LshAttention::draw(const at::Generator& generator) const {
  return at::randn(rotations.sizes(), generator, at::TensorOptions().dtype(at::kFloat)).to(rotations.options());
}

int64_t LshAttention::buckets(int64_t tokens) const {
  if (options_.bucket_count > 0) return options_.bucket_count;
  if (by_bucket()) return usual_;
  return std::min(power_from((tokens + options_.chunk - 1) / options_.chunk), 4 * kColumns * kColumns);
}

Traits LshAttention::traits() const {
  Traits traits;
  traits.relative = true;
  traits.streams = traits.causal = options_.causal && by_bucket();
  if (!options_.causal) {
    traits.why_not = "a token meets later ones of its bucket, so the sequence must be whole";
  } else if (!traits.causal) {
    traits.why_not =
        "chunks are cut from the whole sorted sequence: no later value is read, but later tokens decide which earlier "
        "ones are met";
  }
  return traits;
}

State LshAttention::start(int64_t batch, at::TensorOptions like) const {
  return traits().streams ? cache_.start(batch, like) : State{};
}

std::string LshAttention::truncate(State& state, int64_t lane, int64_t position, int64_t /*newest*/) const {
  return traits().streams ? cache_.truncate(state, lane, position) : traits().why_not;
}

int64_t LshAttention::most_bytes(int64_t /*batch*/, at::TensorOptions /*like*/, int64_t /*newest*/) const {
  return traits().streams ? -1 : 0;  // chunks are counted from the first token on: none may be forgotten
}

double LshAttention::flops(int64_t length, int64_t from) const {
  // At most: all keys of two chunks in every round.
  double met = 0;
  for (int64_t t = from; t < from + length; ++t) {
    met += static_cast<double>(std::min(options_.causal ? t + 1 : 2 * options_.chunk, 2 * options_.chunk));
  }
  const auto D = static_cast<double>(heads_ * width_), rounds = static_cast<double>(options_.rounds);
  const int64_t n = options_.bucket_count > 0 ? options_.bucket_count : usual_, m = rotations.size(4);
  const auto columns = static_cast<double>(n <= 2 * m ? n / 2 : m + n / (4 * m));  // at the training length
  const double hashing = 2 * rounds * D * columns * static_cast<double>(length);
  return q->flops(length) + v->flops(length) + out->flops(length) + hashing + 4 * rounds * met * D;
}

StateKnob LshAttention::state_knob() const {
  return {.why_not = traits().streams ? "its state grows with the text" : "it keeps no state"};
}

std::string LshAttention::explain() const {
  const char* how = q->weight.scalar_type() == at::kDouble ? "loops in Double" : "fused";
  return text("attend_groups, ", how, ": ", options_.rounds, " rounds, chunks of ", options_.chunk, " ",
              by_bucket() ? "within a bucket" : "of what is sorted");
}

std::shared_ptr<const GroupPlan> LshAttention::plan(const Tensor& code, const Sequences& sequences,
                                                    int64_t first) const {
  Cut cut;
  cut.chunk = options_.chunk, cut.same = options_.buckets == "same", cut.by_code = by_bucket();
  cut.wrap = options_.wrap == "none" ? Cut::Wrap::none : options_.wrap == "round" ? Cut::Wrap::round : Cut::Wrap::all;
  auto made = std::make_shared<GroupPlan>();
  made->causal = options_.causal, made->own = false, made->once = options_.dedup;
  made->first = first;
  sort_groups(code, sequences, cut, *made);
  return made;
}

Tensor LshAttention::read(const Tensor& qk, const Tensor& values, Pass& pass, State* state) {
  const Sequences sequences = sequences_of(qk.size(0), qk.size(2), pass.valid, pass.document);
  Tensor turned = rotations;
  if (options_.redraw && is_training() && !state) {
    turned = draw(at::detail::createCPUGenerator(pass.seed + 0x9E3779B97F4A7C15ull * ++pass.draws));
  }
  const Tensor code = angular_hash(qk, turned, sequences, [this](int64_t tokens) { return buckets(tokens); });
  const Tensor keys = qk * at::rsqrt(qk.square().sum(-1, true) + 1e-20);
  GroupRead read;
  if (state) {
    const GroupCache::Met met = cache_.meet(keys, values, code, pass, *state);
    read = attend_groups(qk, met.k, met.v, plan(met.code, met.sequences, met.first));
  } else {
    read = attend_groups(qk, keys, values, plan(code, sequences));
  }
  return at::where(read.lse.isneginf().unsqueeze(-1), values, read.out);
}

Tensor LshAttention::forward(const Tensor& given, Pass& pass, State* state) {
  if ((state || pass.state) && !traits().streams)
    fail("[lsh] expected a whole sequence without a state; found one: ", traits().why_not);
  if (given.size(1) == 0) return given;
  const Tensor x = mask_invalid(given, pass);  // [B, L, D]
  const Tensor o = read(to_heads(q->forward(x), heads_), to_heads(v->forward(x), heads_), pass, state);
  return mask_invalid(out->forward(from_heads(o)), pass);
}

}  // namespace kinfolk
