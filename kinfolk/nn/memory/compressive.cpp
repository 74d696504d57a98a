#include "kinfolk/nn/memory/compressive.h"

#include <torch/csrc/autograd/autograd.h>

#include "kinfolk/nn/memory/cache.h"
#include "kinfolk/nn/memory/compressive_slots.h"
#include "kinfolk/nn/memory/newest.h"

namespace kinfolk {
namespace {

/// The options of a compression with the memory's rate among them.
Spec with_rate(const Spec& spec, int64_t rate, const std::string& path) {
  Value table = spec.value;
  if (!table.as<Value::Table>()) {
    table = Value(Value::Table{});
    table.place = spec.value.place;
    table.set("kind", spec.kind());
  }
  if (const Value* given = table.find("rate")) {
    refuse(given->place.text(), "[", path, ".rate] expected the rate of the memory alone; found one here");
  }
  table.set("rate", rate);
  return Spec(table);
}

}  // namespace

Compressive::Compressive(const Options& options, const Context& context)
    : options_(options), heads_(context.heads), width_(context.size.width), depth_(context.size.depth) {
  if (!heads_.causal) {
    fail("[", context.path, "] expected a causal pattern with a compressive memory; found one that sees the future");
  }
  const std::string path = context.path + ".compress";
  compression = registry<Compression>().create(with_rate(options.compress, options.rate, path), context, path);
  register_module("compress", compression);
  if (options.loss == "autoencoding") {
    decoder = register_module("decode", std::make_shared<Decoder>(context, options.rate));
  }
  if (options.loss == "none" && !compression->parameters().empty()) {
    fail("[", context.path, ".loss] expected attention or autoencoding, since nothing else trains ",
         options.compress.kind(), "; found none");
  }
  const bool even = options.segment % options.rate == 0 && options.memory % options.rate == 0;
  capacity_ = options.memory + options.segment - 1 + (even ? 0 : options.rate - 1);
}

Traits Compressive::traits() const {
  Traits traits;
  traits.bounded = true;
  traits.carries = true;
  traits.relative = false;  // segments begin at multiples of N
  return traits;
}

int64_t Compressive::left(int64_t begin) const {
  return std::max<int64_t>(0, begin - options_.memory) / options_.rate * options_.rate;
}
Tensor Compressive::left(const Tensor& begin) const {
  return (begin - options_.memory).clamp_min(0).div(options_.rate, "floor") * options_.rate;
}

int64_t Compressive::reach() const {
  return options_.slots + capacity_ + 1;  // the keys that the state holds, and the query's own
}

int64_t Compressive::seen(int64_t position) const {
  const int64_t begin = position / options_.segment * options_.segment, gone = left(begin);
  return position + 1 - gone + std::min(gone / options_.rate, options_.slots);
}

double Compressive::flops(int64_t length, int64_t from) const {
  const auto made = [&](int64_t tokens) { return left(tokens / options_.segment * options_.segment) / options_.rate; };
  return static_cast<double>(made(from + length) - made(from)) * compression->flops();
}

std::string Compressive::explain() const {
  const auto& o = options_;
  const int64_t reach = o.memory + o.rate * o.slots, kept = o.memory + o.slots;
  const int64_t pairs = o.segment * (o.segment + 1) / 2 + o.segment * kept;
  return text("compressive memory (", o.compress.kind(), "), reach (m_m + c m_cm) x layers = (", o.memory, " + ",
              o.rate, " x ", o.slots, ") x ", depth_, " = ", reach * depth_, " tokens; a segment of ", o.segment,
              " costs each layer and head ", pairs, " pairs, N (N + 1) / 2 + N (m_m + m_cm), beside ",
              o.segment * (o.segment + 1) / 2 + o.segment * reach, " without compression, and ", o.segment / o.rate,
              " slots of ", std::llround(compression->flops()), " flops");
}

std::string Compressive::keeps() const {
  const auto& o = options_;
  return text("the inputs of a segment of ", o.segment, " tokens and the ", o.memory, " before it, and ", o.slots,
              " slots of ", o.rate, " compressed tokens each (", o.compress.kind(), ")");
}

State Compressive::start(int64_t batch, at::TensorOptions like) const {
  const auto whole = like.dtype(at::kLong);
  State state;
  auto& kept = state.tensors;
  kept[kInputs] = at::zeros({batch, capacity_, width_}, like);
  kept[kAt] = at::full({batch, capacity_}, -1, whole);
  kept[kDocument] = at::zeros({batch, capacity_}, whole);
  if (compression->wants_usage()) kept[kUsage] = at::zeros({batch, capacity_}, like);
  kept[kSlots] = at::zeros({batch, options_.slots, width_}, like);
  for (const char* name : {kSlotAt, kSlotFirst, kSlotLast}) kept[name] = at::full({batch, options_.slots}, -1, whole);
  kept[kSlotDocument] = at::zeros({batch, options_.slots}, whole);
  return state;
}

std::string Compressive::truncate(State& state, int64_t lane, int64_t position, int64_t) const {
  const Tensor at = state.tensors.at(kAt);
  const int64_t read = at.select(0, lane).max().item<int64_t>() + 1;
  const auto gone = [&](int64_t tokens) { return left(tokens / options_.segment * options_.segment); };
  if (gone(position) != gone(read)) {
    return text("inputs from ", gone(position), " on, which position ", position, " would need, have been compressed");
  }
  if (auto why = missing(at, lane, gone(position), position); !why.empty()) return why;
  if (position < read && compression->wants_usage() &&
      state.tensors.at(kUsage).select(0, lane).ne(0).any().item<bool>()) {
    return "the attention that inputs received cannot be taken back";
  }
  const Tensor left = emptied(at, lane, position);
  const Newest order(left, capacity_, true);
  for (const char* name : {kInputs, kDocument}) state.tensors[name] = order.keep(state.tensors.at(name), 1);
  if (compression->wants_usage()) state.tensors[kUsage] = order.keep(state.tensors.at(kUsage), 1);
  state.tensors[kAt] = order.keep(left, 1);
  return "";
}

Read Compressive::meet(const Fresh& fresh, const Eyes& eyes, Pass& pass, State* state) {
  const bool in_training = at::GradMode::is_enabled() || is_training();
  State whole;
  if (!state) state = &whole;
  if (state->tensors.empty()) *state = start(fresh.x.size(0), fresh.x.options());
  auto& kept = state->tensors;
  const bool gaps = pass.valid.defined() && !pass.valid.all().item<bool>();
  const int64_t n = options_.segment, length = fresh.x.size(1);

  const Tensor position = valid_positions(pass);
  Rows rows;
  rows.x = at::cat({kept.at(kInputs).to(fresh.x.scalar_type()), fresh.x}, 1);  // [B, C + L, D]
  rows.at = at::cat({kept.at(kAt), position}, 1);                              // [B, C + L]
  rows.document = at::cat({kept.at(kDocument), documents(pass)}, 1);
  const Tensor begin = pass.position.div(n, "floor") * n;  // [B, L] s
  const Tensor gone = left(begin);                         // [B, L] D(s)

  /// Inputs in columns [first, C + L), the call's own keys being there already.
  const auto with_fresh = [&](int64_t first) {
    Keys keys{fresh.k, fresh.v, rows.at.slice(1, first), rows.document.slice(1, first), gone, {}};
    if (first < capacity_) {
      const Eyes::KeyValue old = eyes.project(rows.x.narrow(1, first, capacity_ - first));
      keys.k = at::cat({old.k, fresh.k}, 2);  // [B, G, C - first + L, d]
      keys.v = at::cat({old.v, fresh.v}, 2);
    }
    return keys;
  };
  const Tensor seen = rows.at.ge(gone.amin(1, true).clamp_min(0));  // by some query of the lane, or newer
  // The columns that queries see as past, and as their own segment: where these have to be apart.
  const bool apart = in_training || compression->wants_usage();
  Tensor own;
  int64_t first = 0, last = 0;
  if (apart) {
    own = seen.logical_and(rows.at.ge(begin.amin(1, true)));
    std::tie(first, last) = filled_columns(seen.logical_and(rows.at.lt(begin.amax(1, true))));
  }
  const auto live_keys = [&] {
    Keys live = with_fresh(filled_columns(own.narrow(1, 0, capacity_)).first);
    live.from = begin;
    return live;
  };
  const auto past_keys = [&] {
    const Eyes::KeyValue old = eyes.project(rows.x.narrow(1, first, last - first).detach());
    return Keys{old.k, old.v, rows.at.slice(1, first, last), rows.document.slice(1, first, last), gone, begin};
  };
  const auto one_document = [&](std::vector<Keys> sets) {
    if (!pass.document.defined())
      for (auto& set : sets) set.document = Tensor();
    return sets;
  };

  if (compression->wants_usage()) {
    rows.usage = at::constant_pad_nd(kept.at(kUsage).detach(), {0, length});
    if (first < last) {
      Tensor mass;
      {
        const at::AutoGradMode graph(true);
        Keys past = past_keys(), live = live_keys();
        live.k = live.k.detach(), live.v = live.v.detach(), past.k = past.k.detach();
        past.v = past.v.detach().set_requires_grad(true);
        const Tensor out = eyes.look(fresh.q.detach(), one_document({past, live}), {}).out;
        mass = torch::autograd::grad({out.sum()}, {past.v})[0];  // [B, G, S, d], the same in each channel
      }
      rows.usage.narrow(1, first, last - first).add_(mass.select(-1, 0).sum(1));
    }
  }

  rows.compact_x = rows.x.detach(), rows.compact_at = rows.at, rows.compact_document = rows.document;
  rows.compact_usage = rows.usage;
  if (gaps) {
    const Newest order(rows.at, rows.at.size(1), true);
    rows.compact_x = order.keep(rows.compact_x, 1);
    rows.compact_at = order.keep(rows.at, 1);
    rows.compact_document = order.keep(rows.document, 1);
    if (rows.usage.defined()) rows.compact_usage = order.keep(rows.usage, 1);
  }
  const bool learns = pass.losses && options_.loss != "none";
  const Made made = [&] {
    const at::AutoGradMode graph(learns && at::GradMode::is_enabled());
    return make_slots(rows, position);
  }();
  if (learns) {
    const Tensor tokens = position.ge(0).sum().clamp_min(1);
    const Tensor sum = made.leaving.rows.defined() ? loss_of(made, rows, eyes, pass.document.defined())
                                                   : at::zeros({}, fresh.x.options());
    add_loss(pass, "compression", sum / tokens);
  }

  // Slots of state and call, newest at the right end.
  Tensor slots = kept.at(kSlots).detach().to(fresh.x.scalar_type());          // [B, S, D]
  Tensor slot_at = kept.at(kSlotAt), slot_document = kept.at(kSlotDocument);  // [B, S]
  Tensor slot_first = kept.at(kSlotFirst), slot_last = kept.at(kSlotLast);
  if (made.rows.defined()) {
    const auto joined = [](const Tensor& a, const Tensor& b) { return at::cat({a, b.to(a.scalar_type())}, 1); };
    const Tensor at = joined(slot_at, made.at);
    const Newest order(at, at.size(1), made.at.lt(0).any().item<bool>());
    slots = order.keep(joined(slots, made.rows), 1);
    slot_document = order.keep(joined(slot_document, made.document), 1);
    slot_first = order.keep(joined(slot_first, made.first), 1);
    slot_last = order.keep(joined(slot_last, made.last), 1);
    slot_at = order.keep(at, 1);
  }
  if (state != &whole) {
    const Newest newest(rows.at, capacity_, gaps);
    kept[kInputs] = newest.keep(rows.x, 1).to(kept.at(kInputs).scalar_type());
    kept[kAt] = newest.keep(rows.at, 1);
    kept[kDocument] = newest.keep(rows.document, 1);
    if (rows.usage.defined()) kept[kUsage] = newest.keep(rows.usage, 1).to(kept.at(kUsage).scalar_type());
    if (made.rows.defined()) {
      const Newest last_slots(slot_at, options_.slots, false);
      kept[kSlots] = last_slots.keep(slots, 1).to(kept.at(kSlots).scalar_type());
      kept[kSlotAt] = last_slots.keep(slot_at, 1);
      kept[kSlotDocument] = last_slots.keep(slot_document, 1);
      kept[kSlotFirst] = last_slots.keep(slot_first, 1);
      kept[kSlotLast] = last_slots.keep(slot_last, 1);
    }
  }

  std::vector<Keys> sets;
  for (auto& set : slot_keys(slots, slot_at, slot_document, rows.compact_at.select(1, -1) + 1,
                             begin.masked_fill(position.lt(0), -1), eyes)) {
    sets.push_back(std::move(set));
  }
  // Not in training, where recomputation must drop the same weights with a graph and without.
  if (!in_training) {
    sets.push_back(with_fresh(filled_columns(seen.narrow(1, 0, capacity_)).first));
  } else {
    if (first < last) sets.push_back(past_keys());
    sets.push_back(live_keys());
  }
  return eyes.look(fresh.q, one_document(std::move(sets)), {});
}

}  // namespace kinfolk
