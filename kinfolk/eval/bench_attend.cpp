#include "kinfolk/eval/bench_attend.h"

#include "kinfolk/core/errors.h"
#include "kinfolk/nn/mixers/attention.h"
#include "kinfolk/nn/score/by_distance.h"
#include "kinfolk/pattern/pattern.h"

namespace kinfolk {
namespace {

constexpr int64_t kHeads = 8, kWidth = 64;
constexpr double kForward = 4 * kWidth, kBoth = 14 * kWidth;  // operations a pair, recomputed scores included

/// Pairs of a causal window, of all heads.
double pairs(int64_t length, int64_t window) {
  const double full = static_cast<double>(std::min(length, window)), rest = static_cast<double>(length) - full;
  return kHeads * (full * (full + 1) / 2 + rest * full);
}

Context context() {
  Context c;
  c.size.width = kHeads * kWidth, c.size.heads = kHeads;
  c.like = at::TensorOptions().dtype(at::kFloat);
  c.generator = at::detail::createCPUGenerator(1);
  c.path = "bench";
  c.heads.count = c.heads.groups = kHeads;
  c.heads.width = c.heads.value_width = kWidth;
  c.heads.scale = 1 / std::sqrt(static_cast<double>(kWidth));
  return c;
}

/// Queries that are the last of so many keys, and how they are read.
struct Problem {
  Problem(const std::string& pattern, int64_t keys, bool gradients = true, at::ScalarType type = at::kFloat,
          int64_t queries = -1) {
    const int64_t length = queries < 0 ? keys : queries;
    const auto draw = [&](int64_t n) { return at::randn({1, kHeads, n, kWidth}).to(type).requires_grad_(gradients); };
    q = draw(length), k = draw(keys), v = draw(keys);
    at = at::arange(keys, at::kLong).unsqueeze(0);
    q_at = at.narrow(1, keys - length, length);
    plan.pattern = parse_pattern(pattern);
  }
  Tensor read() const { return attend({{q}}, q, q_at, {}, {{k, v, at, {}, {}, {}}}, {{{k}}}, plan).out; }
  Side ours(std::vector<Tensor> more = {}) const {
    std::vector<Tensor> leaves = {q, k, v};
    leaves.insert(leaves.end(), more.begin(), more.end());
    return {[this] { return read(); }, leaves};
  }
  /// SDPA, causal or with a mask.
  Side peer(const std::optional<Tensor>& mask = {}) const {
    return {[this, mask] { return at::scaled_dot_product_attention(q, k, v, mask, 0.0, !mask); }, {q, k, v}};
  }
  Tensor q, k, v, at, q_at;
  AttendPlan plan;
};

void dense(BenchRun& run) {
  for (const int64_t length : run.lengths({1024, 4096, 4097}, {16384})) {
    const Problem p("causal", length);
    const double n = pairs(length, length);
    run.contest({"causal", length, "SDPA", kForward * n, kBoth * n, Goal{1.15}, Goal{length > 8000 ? 1.2 : 1.3}},
                p.ours(), p.peer());
  }
}

void half(BenchRun& run) {
  for (const int64_t length : run.lengths({4096}, {1024, 16384})) {
    const Problem p("causal", length, true, at::kBFloat16);
    const double n = pairs(length, length);
    run.contest({.what = "causal, bfloat16",
                 .length = length,
                 .other = "SDPA bfloat16",
                 .forward_flops = kForward * n,
                 .both_flops = kBoth * n,
                 .forward_goal = Goal{1.2},
                 .both_goal = Goal{2},
                 .half = true},
                p.ours(), p.peer());
  }
}

/// What SDPA needs to do the same: the scores' additions as a matrix.  [1, H, L, L]
Tensor mask_of(ScoreStep& step, const Problem& p) {
  const at::NoGradGuard guard;
  const int64_t length = p.q.size(2);
  const DistanceTable table = *step.by_distance(p.q, 0, length - 1);
  const Tensor distance = p.at.view({-1, 1}) - p.at.view({1, -1});
  return read_by_distance(table.table, table.lowest, distance.view({1, 1, length, length}))
      .masked_fill(distance.lt(0), -INFINITY)
      .contiguous();
}

void bias(BenchRun& run) {
  for (const int64_t length : run.lengths({2048}, {4096, 4097})) {
    Problem with("causal", length);
    const Problem bare("causal", length);
    const double n = pairs(length, length);
    for (const char* kind : {"alibi", "t5", "kerple"}) {
      const auto step = registry<Score>().create(Spec(kind), context(), "bench");
      with.plan.score = {step.get()};
      const Side ours = with.ours(step->parameters());
      {
        const Tensor mask = mask_of(*step, with);
        run.contest({kind, length, "SDPA, constant mask", kForward * n, kBoth * n, Goal{1.5}, Goal{3}}, ours,
                    with.peer(mask));
      }
      run.contest({kind, length, "attend without", 0, 0, Goal{1 / 1.15}, Goal{1 / 1.2}}, ours, bare.ours());
    }
    const auto step = registry<Score>().create(Spec("xl"), context(), "bench");
    with.plan.score = {step.get()};
    run.contest({"xl", length, "attend without"}, with.ours(step->parameters()), bare.ours());
  }
}

/// An attention branch on inputs 8 wide, so that its projections cost next to nothing, after so many tokens.
struct Branched {
  explicit Branched(const char* step, int64_t tokens = 0) {
    Context c = context();
    c.size.width = x.size(2);
    Attention::Options options;
    options.head_width = kWidth, options.qk = {Spec(step)};
    mixer = std::make_shared<Attention>(options, c);
    state = mixer->start(1, x.options());
    constexpr int64_t kPiece = 1024;
    for (int64_t n = 0; n < tokens; n += kPiece) next(at::randn({1, std::min(kPiece, tokens - n), x.size(2)}));
  }
  void next(const Tensor& more) {
    const at::NoGradGuard guard;
    Pass pass{.batch = batch};
    pass.position = at::arange(at, at + more.size(1), at::kLong).unsqueeze(0);
    at += more.size(1);
    mixer->forward(more, pass, &state);
  }
  /// The steps and the attention of a whole sequence.
  Side look(const Problem& p) const {
    return {[this, &p] { return mixer->look(p.q, p.q_at, {}, {{p.k, p.v, p.at, {}, {}, {}}}).out; }, {p.q, p.k, p.v}};
  }
  Tensor x = at::randn({1, 1, 8});
  Batch batch;
  std::shared_ptr<Attention> mixer;
  State state;
  int64_t at = 0;
};

void rerope(BenchRun& run) {
  for (const int64_t length : run.lengths({4096}, {4097, 16384})) {
    const Problem p("causal", length);
    const Branched rope("rope"), rerope("rerope");
    run.contest({"rerope, window 256", length, "rope", 0, 0, Goal{1 / 1.15}, Goal{1 / 1.15}}, rerope.look(p),
                rope.look(p));
  }
  for (const int64_t length : run.lengths({1024, 16384}, {65536})) {
    Branched rope("rope", length), rerope("rerope", length);
    run.step(
        "rerope, a step", length, "rope", 0, [&] { rerope.next(rerope.x); }, [&] { rope.next(rope.x); },
        Goal{1 / 1.15});
  }
}

void window(BenchRun& run) {
  for (const int64_t length : run.lengths({8192})) {
    const Problem p("causal & window(512)", length);
    const Tensor distance = p.at.view({-1, 1}) - p.at.view({1, -1});
    const Tensor mask = distance.ge(0).logical_and(distance.lt(512)).view({1, 1, length, length});
    const double n = pairs(length, 512);
    run.contest({"window 512", length, "SDPA, mask", kForward * n, kBoth * n, Goal{10}, Goal{8}}, p.ours(),
                p.peer(mask));
  }
}

void patterns(BenchRun& run) {
  for (const int64_t length : run.lengths({4096}, {16384})) {
    const Problem causal("causal", length);
    for (const auto& [name, pattern] : std::vector<std::pair<std::string, std::string>>{
             {"strided 128", "causal & (window(128) | stride(128))"},
             {"fixed 128, 8 columns", "causal & (block_local(128, 0) | fixed(128, 8))"}}) {
      const Problem p(pattern, length);
      run.contest({name, length, "attend, all pairs"}, p.ours(), causal.ours());
    }
  }
}

void decode(BenchRun& run) {
  for (const int64_t length : run.lengths({1024, 16384, 65536})) {
    const Problem p("causal", length, false, at::kFloat, 1);
    const double bytes = 2.0 * kHeads * kWidth * sizeof(float) * static_cast<double>(length);
    run.step(
        "a step over the cache", length, "SDPA", bytes, [&] { p.read(); },
        [&] { at::scaled_dot_product_attention(p.q, p.k, p.v); });
  }
}

void growth(BenchRun& run) {
  std::vector<std::pair<int64_t, int64_t>> all = {run.stretch(4096, 16384)};
  if (all[0] == std::make_pair<int64_t, int64_t>(4096, 16384)) all.emplace_back(8192, 32768);
  for (const auto& lengths : all) {
    const Problem near("causal & window(512)", lengths.first), far("causal & window(512)", lengths.second);
    const auto either = [&](auto way) {
      return [a = way(near.ours()), b = way(far.ours())](bool longer) { (longer ? b : a)(); };
    };
    run.growth("window 512, forward", lengths, 1.15, either(forward_of));
    run.growth("window 512, with backward", lengths, 1.15, either(both_of));
    if (lengths != all.back()) continue;
    const double output = 4.0 * kHeads * kWidth * static_cast<double>(lengths.second);
    BenchRow row;
    row.what = "window 512, forward: memory", row.length = lengths.second, row.unit = "B";
    row.ours = static_cast<double>(run.peak(forward_of(far.ours()))), row.theirs = output + 32 * 1048576.0;
    row.other = "output + 32 MiB", row.ratio = row.ours / row.theirs, row.goal = Goal{1, true};
    run.add(row);
    // Output, gradients of it and of q, k, v, and the normalisers are what the caller asked for.
    row.what = "window 512, with backward: memory";
    row.ours = static_cast<double>(run.peak(both_of(far.ours()))), row.theirs = 5 * output + 32 * 1048576.0;
    row.other = "5 outputs + 32 MiB", row.ratio = row.ours / row.theirs;
    run.add(row);
  }
}

struct Group {
  const char *name, *about;
  void (*run)(BenchRun&);
};
constexpr Group kGroups[] = {
    {"dense", "all earlier pairs, against SDPA", dense},
    {"bfloat16", "the same in bfloat16", half},
    {"bias", "ALiBi, T5, KERPLE against SDPA with a mask and against none, Transformer-XL against none", bias},
    {"rerope", "ReRoPE against RoPE, whole sequences and steps", rerope},
    {"window", "a window of 512 against SDPA with a mask", window},
    {"patterns", "strided and fixed patterns against all pairs", patterns},
    {"decode", "a step by the length of the cache, beside the speed of memory", decode},
    {"growth", "time and memory of a window by length", growth}};

}  // namespace

const std::vector<std::pair<std::string, std::string>>& bench_attend_groups() {
  static const auto all = [] {
    std::vector<std::pair<std::string, std::string>> out;
    for (const Group& group : kGroups) out.emplace_back(group.name, group.about);
    return out;
  }();
  return all;
}

void bench_attend(BenchRun& run) {
  at::manual_seed(1);
  for (const Group& group : kGroups)
    if (run.wants(group.name)) group.run(run);
}

}  // namespace kinfolk
