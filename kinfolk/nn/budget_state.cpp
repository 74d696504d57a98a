// Options for a number of bytes of state: each candidate is built and run until its state has settled.
#include <c10/core/Device.h>

#include "kinfolk/core/errors.h"
#include "kinfolk/nn/model.h"

namespace kinfolk {
namespace {

constexpr double kWithin = 0.1;
constexpr int64_t kCalls = 256;  ///< of a context each, after which a state that still grows is said to grow

/// An option of the recipe that sets the bytes of the state.
struct Knob {
  std::vector<std::string> places;  ///< keys that get its value
  std::string name;
  bool divides = false;
};

Knob knob_of(const Recipe& recipe, const Size& size) {
  std::map<std::string, std::shared_ptr<torch::nn::Module>> shared;
  Context context;
  context.size = size;
  context.like = at::TensorOptions().device(at::kMeta);
  context.shared = &shared;
  const Value* let = recipe.tree.find("let");
  if (let) context.let = *let;
  std::map<std::string, Knob> found;
  std::string why_not;
  const Value* layers = recipe.tree.find("layers");
  const auto* groups = layers ? layers->as<Value::Array>() : nullptr;
  for (size_t g = 0; groups && g < groups->size(); g++) {
    const Value* listed = (*groups)[g].find("branches");
    const auto* branches = listed ? listed->as<Value::Array>() : nullptr;
    for (size_t b = 0; branches && b < branches->size(); b++) {
      const std::string path = text("layers.", g, ".branches.", b), kind = Spec((*branches)[b]).kind();
      const auto branch =
          registry<Branch>().create(Spec((*branches)[b]), context.at(path), path, {"norm", "norm_kind", "residual"});
      if (branch->start(1, context.like).empty()) continue;
      const StateKnob said = branch->state_knob();
      if (!said.option.empty()) {
        Knob& knob = found[kind + "." + said.option];
        knob.name = kind + "." + said.option, knob.divides = said.divides;
        knob.places.push_back(path + "." + said.option);
      } else if (!said.why_not.empty()) {
        why_not = text(kind, ": ", said.why_not);
      } else {
        for (const char* name : {"window", "memory"}) {
          if (!let || !let->find(name) || !let->find(name)->as<int64_t>()) continue;
          Knob& knob = found[text("let.", name)] = {{text("let.", name)}, text("let.", name), false};
          // As many compressed ones as others.
          if (name == std::string("memory") && let->find("slots")) knob.places.push_back("let.slots");
          break;
        }
      }
    }
  }
  if (found.size() == 1) return found.begin()->second;
  if (found.empty()) {
    fail("[state_budget] expected a member with an option that sets the bytes of its state; found ", recipe.name,
         why_not.empty() ? ", which has none" : ", which has none (" + why_not + ")");
  }
  std::string names;
  for (const auto& [name, knob] : found) names += (names.empty() ? "" : " and ") + name;
  fail("[state_budget] expected a member with one option that sets the bytes of its state; found ", recipe.name,
       ", whose state depends on ", names, " (--set them instead)");
}

Recipe turned(Recipe recipe, const Knob& knob, int64_t value) {
  for (const auto& place : knob.places) override_recipe(recipe, text(place, "=", value));
  return recipe;
}

double distance(int64_t found, int64_t wanted) {
  return std::abs(static_cast<double>(found) / static_cast<double>(wanted) - 1);
}

}  // namespace

int64_t settled_state_bytes(const Recipe& recipe, const Size& size) {
  const at::NoGradGuard guard;
  const auto model = Model::make(recipe, size);
  model->eval();
  const Traits traits = model->traits();
  if (!traits.streams) {
    fail("[state_budget] expected a member that streams; found ", recipe.name, ": ", traits.why_not);
  }
  if (!traits.bounded || traits.context > 0) {
    fail("[state_budget] expected a member whose state is bounded; found ", recipe.name,
         ", whose state grows with the text");
  }
  State state = model->start(1);
  const int64_t empty = state.bytes();
  model->score({at::zeros({1, 1}, at::kLong), {}}, &state);
  if (state.bytes() == empty) return empty;  // what keeps tokens grows by the first one
  int64_t before = -1, same = 0;
  for (int64_t call = 0; call < kCalls && same < 2; call++) {  // twice: what is kept may grow in steps
    Batch batch;
    batch.tokens = at::zeros({1, size.context}, at::kLong);
    model->score(batch, &state);
    same = state.bytes() == before ? same + 1 : 0;
    before = state.bytes();
  }
  return before;
}

Recipe solve_state_budget(Recipe recipe, const Size& size, int64_t bytes) {
  if (bytes < 1) refuse("[state_budget] expected at least 1 byte; found ", bytes);
  settled_state_bytes(recipe, size);  // refuses what has no settled state
  const Knob knob = knob_of(recipe, size);
  struct Tried {
    int64_t value, bytes;
  };
  std::vector<Tried> tried;
  const auto measure = [&](int64_t value) {
    for (const auto& one : tried)
      if (one.value == value) return one.bytes;
    tried.push_back({value, settled_state_bytes(turned(recipe, knob, value), size)});
    return tried.back().bytes;
  };
  if (knob.divides) {
    for (int64_t heads = 1; heads <= size.width; heads++) {
      if (size.width % heads != 0) continue;
      try {
        measure(heads);
      } catch (const Error&) {  // a width of heads that the member does not take
      }
    }
  } else {
    // Bytes are nearly proportional beyond a constant: the line through two values meets the budget in few rounds.
    int64_t one = 16, two = 32;
    for (int round = 0; round < 6 && one != two; round++) {
      const double each = static_cast<double>(measure(two) - measure(one)) / static_cast<double>(two - one);
      if (each <= 0) break;
      one = two;
      const double next = static_cast<double>(two) + static_cast<double>(bytes - measure(two)) / each;
      two = static_cast<int64_t>(std::clamp(std::round(next), 1.0, 1e6));
    }
    measure(two);
  }
  const auto nearest = std::min_element(tried.begin(), tried.end(), [&](const Tried& a, const Tried& b) {
    return distance(a.bytes, bytes) < distance(b.bytes, bytes);
  });
  if (nearest == tried.end() || distance(nearest->bytes, bytes) > kWithin) {
    std::string reach;
    std::sort(tried.begin(), tried.end(), [](const Tried& a, const Tried& b) { return a.bytes < b.bytes; });
    for (const auto& t : tried) reach += text(reach.empty() ? "" : ", ", t.bytes, " (", t.value, ")");
    fail("[state_budget] expected bytes that ", recipe.name, " can reach within 10 % by ", knob.name, " at width ",
         size.width, "; found ", bytes, "; tried: ", reach.empty() ? "none that it takes" : reach);
  }
  return turned(std::move(recipe), knob, nearest->value);
}

}  // namespace kinfolk
