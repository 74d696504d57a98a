#include "kinfolk/eval/bench_memory.h"

#include "kinfolk/core/errors.h"
#include "kinfolk/nn/model.h"

namespace kinfolk {
namespace {

constexpr int64_t kSegment = 128, kRate = 4;

/// A member that reads segment after segment, from a state whose memory is full.
struct Reader {
  std::shared_ptr<Model> model;
  State full;
  Tensor tokens;  // [1, N]

  Reader(const std::string& name, const std::vector<std::string>& sets, int64_t reach) {
    Recipe recipe = load_recipe(name);
    for (const auto& set : sets) override_recipe(recipe, set);
    model = Model::make(recipe, load_size("tiny"), 1);
    tokens = at::randint(model->size().vocabulary, {1, kSegment}, at::kLong);
    full = model->start(1);
    for (int64_t read = 0; read < reach + 2 * kSegment; read += kSegment) model->score({tokens, {}}, &full);
  }
  Tensor segment() const {
    State state = full;  // a call replaces its tensors, and writes into none
    return model->score({tokens, {}}, &state);
  }
};

Reader transformer_xl(int64_t length) {
  return {"transformer_xl", {text("let.segment=", kSegment), text("let.memory=", length)}, length};
}

/// As many slots as inputs in the FIFO: length = m_m + c m_cm, rounded to whole slots.
Reader compressive(int64_t length) {
  const int64_t each = std::max<int64_t>(1, length / (1 + kRate) / kRate) * kRate;
  return {"compressive",
          {text("let.segment=", kSegment), text("let.memory=", std::max(kRate, length - kRate * each)),
           text("let.slots=", each), text("let.rate=", kRate)},
          length};
}

/// The last of `length` tokens, with all of them computed for it.
Tensor last_of(Model& model, const Tensor& tokens) {
  model.eval();
  const Batch batch{tokens, {}};
  Pass pass{batch};
  const Tensor x = model.hidden(pass);
  return model.head().read(x.narrow(1, x.size(1) - 1, 1), pass);
}

/// One token is computed from its whole context, and counts N times: the others of the segment cost the same.
void sliding(BenchRun& run, const std::string& name, Reader (*make)(int64_t)) {
  for (const int64_t length : run.lengths({800, 1800, 2800, 3800})) {
    const Reader ours = make(length), whole = transformer_xl(length);
    const Tensor context = at::randint(whole.model->size().vocabulary, {1, length}, at::kLong);
    run.contest({.what = text(name, ", ", kSegment, " tokens"),
                 .length = length,
                 .other = text("context anew, 1 token x ", kSegment),
                 .both = false,
                 .scale = static_cast<double>(kSegment)},
                {[&] { return ours.segment(); }, {}}, {[&] { return last_of(*whole.model, context); }, {}});
  }
}

void transformer_xl_sliding(BenchRun& run) { sliding(run, "transformer_xl", transformer_xl); }
void compressive_sliding(BenchRun& run) { sliding(run, "compressive", compressive); }

void same_reach(BenchRun& run) {
  for (const int64_t length : run.lengths({800, 1800, 2800, 3800})) {
    const Reader ours = compressive(length), theirs = transformer_xl(length);
    run.contest({.what = text("compressive, ", kSegment, " tokens"),
                 .length = length,
                 .other = "transformer_xl of the same reach",
                 .both = false},
                {[&] { return ours.segment(); }, {}}, {[&] { return theirs.segment(); }, {}});
    BenchRow row;
    row.what = "compressive: state", row.length = length, row.unit = "B", row.other = "transformer_xl";
    row.ours = static_cast<double>(ours.full.bytes()), row.theirs = static_cast<double>(theirs.full.bytes());
    row.ratio = row.ours / row.theirs;
    run.add(row);
  }
}

struct Group {
  const char *name, *about;
  void (*run)(BenchRun&);
};
constexpr Group kGroups[] = {
    {"transformer_xl", "segments with recurrence against the context anew for every token", transformer_xl_sliding},
    {"compressive", "the same at the same reach, one in five of it as it is, the rest compressed by 4",
     compressive_sliding},
    {"reach", "both at the same reach: time of a segment, bytes of the state", same_reach}};

}  // namespace

const std::vector<std::pair<std::string, std::string>>& bench_memory_groups() {
  static const auto all = [] {
    std::vector<std::pair<std::string, std::string>> out;
    for (const Group& group : kGroups) out.emplace_back(group.name, group.about);
    return out;
  }();
  return all;
}

void bench_memory(BenchRun& run) {
  at::manual_seed(1);
  const at::NoGradGuard guard;
  for (const Group& group : kGroups)
    if (run.wants(group.name)) group.run(run);
}

}  // namespace kinfolk
