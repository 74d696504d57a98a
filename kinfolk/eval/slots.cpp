#include "kinfolk/eval/slots.h"

#include <iomanip>

#include "kinfolk/core/errors.h"
#include "kinfolk/eval/markup.h"
#include "kinfolk/nn/memory/compressive.h"
#include "kinfolk/nn/model.h"

namespace kinfolk {
namespace {

/// The compressive memories of a model by the number of their layer.
std::vector<std::pair<int64_t, std::shared_ptr<Compressive>>> memories_of(const Model& model) {
  std::vector<std::pair<int64_t, std::shared_ptr<Compressive>>> out;
  for (const auto& item : model.named_modules()) {
    const std::string prefix = "layers.";
    const auto memory = std::dynamic_pointer_cast<Compressive>(item.value());
    if (memory && item.key().rfind(prefix, 0) == 0)
      out.emplace_back(std::stoll(item.key().substr(prefix.size())), memory);
  }
  std::stable_sort(out.begin(), out.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
  return out;
}

/// The states of such memories, in the order of the layers.
void find_states(const State& state, std::vector<const State*>& out) {
  if (state.tensors.count(Compressive::kSlotFirst)) out.push_back(&state);
  std::vector<std::pair<int64_t, const State*>> parts;
  for (const auto& [name, part] : state.parts) {
    const size_t dot = name.rfind('.');
    parts.emplace_back(dot == std::string::npos ? 0 : std::stoll(name.substr(dot + 1)), &part);
  }
  std::stable_sort(parts.begin(), parts.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
  for (const auto& [number, part] : parts) find_states(*part, out);
}

MemoryMoment moment_of(const State& state, const Compressive& memory, int64_t begin) {
  const auto numbers = [&](const char* name) { return state.tensors.at(name)[0].contiguous(); };
  const Tensor at = numbers(Compressive::kSlotAt), first = numbers(Compressive::kSlotFirst),
               last = numbers(Compressive::kSlotLast), document = numbers(Compressive::kSlotDocument);
  const bool own = memory.compression->wants_usage();  // slots are tokens
  MemoryMoment moment{begin, {}, memory.left(begin)};
  for (int64_t n = 0; n < at.size(0); ++n) {
    const int64_t place = at[n].item<int64_t>();
    if (place < 0) continue;
    moment.slots.push_back({place, own ? place : place + 1 - memory.options().rate, place + 1, first[n].item<int64_t>(),
                            last[n].item<int64_t>(), document[n].item<int64_t>() < 0});
  }
  return moment;
}

std::shared_ptr<Model> small_model(const Recipe& recipe, at::TensorOptions like) {
  Size size = load_size("tiny");
  size.depth = 1;
  if (const auto* layers = recipe.tree.find("layers")) {
    if (const auto* groups = layers->as<Value::Array>()) {
      size.depth = std::max<int64_t>(1, static_cast<int64_t>(groups->size()));
    }
  }
  return Model::make(recipe, size, 1, like);
}

bool same(const MemoryPicture& a, const MemoryPicture& b) {
  if (a.compression != b.compression || a.moments.size() != b.moments.size()) return false;
  for (size_t m = 0; m < a.moments.size(); ++m) {
    const auto &x = a.moments[m].slots, &y = b.moments[m].slots;
    if (a.moments[m].fifo != b.moments[m].fifo || x.size() != y.size()) return false;
    for (size_t n = 0; n < x.size(); ++n)
      if (x[n].at != y[n].at || x[n].first != y[n].first || x[n].last != y[n].last) return false;
  }
  return true;
}

std::string layers_text(const MemoryPicture& picture) {
  std::string out;
  for (size_t n = 0; n < picture.layers.size(); ++n) out += text(n ? ", " : "[[layers]] ", picture.layers[n]);
  return out.empty() ? "" : out + ", ";
}

std::string about(const MemoryPicture& p) {
  return text(p.compression, ": segments of ", p.segment, ", FIFO of ", p.memory, ", ", p.slots, " slots of ", p.rate,
              " tokens each, reach ", p.memory + p.rate * p.slots);
}

}  // namespace

bool has_slots(const Recipe& recipe) {
  return !memories_of(*small_model(recipe, at::TensorOptions().device(at::kMeta))).empty();
}

int64_t first_slot(const MemoryPicture& picture) {
  return (picture.memory + picture.rate + picture.segment - 1) / picture.segment * picture.segment;
}

std::vector<MemoryPicture> memory_pictures(const Recipe& recipe, int64_t tokens, int64_t most,
                                           const std::map<std::string, at::Tensor>& facts) {
  const auto model = small_model(recipe, at::TensorOptions().dtype(at::kDouble));
  const auto memories = memories_of(*model);
  std::vector<MemoryPicture> all;
  if (memories.empty()) return all;
  int64_t step = memories[0].second->options().segment, longest = 0;
  for (const auto& [layer, memory] : memories) {
    const auto& o = memory->options();
    if (o.segment != step)
      fail("[draw] expected one length of segments in all layers; found ", step, " and ", o.segment);
    all.push_back({{layer}, o.compress.kind(), o.segment, o.memory, o.slots, o.rate, 0, {}});
    longest = std::max(longest, o.memory + o.rate * o.slots + 3 * o.segment);
  }
  const int64_t wanted = tokens > 0 ? tokens : std::min(most, (longest + step - 1) / step * step);
  State state = model->start(1);
  const Tensor text = at::arange(wanted, at::kLong).mul(7).remainder(model->size().vocabulary).unsqueeze(0);
  for (int64_t begin = 0; begin < wanted; begin += step) {
    std::vector<const State*> states;
    find_states(state, states);
    for (size_t n = 0; n < all.size(); ++n) {
      all[n].tokens = wanted;
      all[n].moments.push_back(moment_of(*states.at(n), *memories[n].second, begin));
    }
    Batch batch{text.slice(1, begin, std::min(begin + step, wanted)), {}};
    for (const auto& [name, fact] : facts) {
      batch.facts[name] =
          fact.dim() == 2 && fact.size(1) == wanted ? fact.slice(1, begin, begin + batch.tokens.size(1)) : fact;
    }
    model->score(batch, &state);
  }
  std::vector<MemoryPicture> out;
  for (auto& picture : all) {
    const auto found = std::find_if(out.begin(), out.end(), [&](const auto& one) { return same(one, picture); });
    if (found == out.end()) {
      out.push_back(std::move(picture));
    } else {
      found->layers.push_back(picture.layers[0]);
    }
  }
  if (out.size() == 1) out[0].layers.clear();
  return out;
}

std::string draw_text(const MemoryPicture& picture) {
  std::ostringstream out;
  out << layers_text(picture) << about(picture) << "\n"
      << "  [--] a slot (X: of two documents, unseen), m the FIFO, q the segment itself, . forgotten\n";
  const auto width = static_cast<int>(std::to_string(picture.tokens).size());
  for (const auto& moment : picture.moments) {
    const int64_t end = std::min(moment.begin + picture.segment, picture.tokens);
    std::string line(static_cast<size_t>(end), '.');
    for (const auto& slot : moment.slots)
      for (int64_t t = std::max<int64_t>(slot.from, 0); t < slot.to; ++t) {
        const bool one = slot.to - slot.from == 1;
        line[static_cast<size_t>(t)] = slot.hidden        ? 'X'
                                       : one              ? 'o'
                                       : t == slot.from   ? '['
                                       : t + 1 == slot.to ? ']'
                                                          : '-';
      }
    for (int64_t t = moment.fifo; t < moment.begin; ++t) line[static_cast<size_t>(t)] = 'm';
    for (int64_t t = moment.begin; t < end; ++t) line[static_cast<size_t>(t)] = 'q';
    out << "  " << std::setw(width) << moment.begin << "  " << line << "\n";
  }
  return out.str();
}

std::string svg(const MemoryPicture& picture, const std::string& title, const std::string& note) {
  const int64_t cell = std::clamp<int64_t>(760 / std::max<int64_t>(picture.tokens, 1), 3, 16), row = 30, left = 56,
                top = 78;
  const auto rows = static_cast<int64_t>(picture.moments.size());
  const int64_t width = std::max<int64_t>(left + picture.tokens * cell + 12, 760), height = top + rows * row + 44;
  const char *slot_colour[] = {"#0072b2", "#56b4e9"}, *fifo = "#009e73", *own = "#e69f00";
  std::string out =
      text("<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 ", width, " ", height, "\" width=\"", width,
           "\" height=\"", height, "\" font-family=\"system-ui,sans-serif\" font-size=\"12\" fill=\"currentColor\">\n",
           "<title>", escape(title), "</title>\n");
  const auto words = [&](int64_t x, int64_t y, const std::string& say, const char* more = "") {
    out += text("<text x=\"", x, "\" y=\"", y, "\"", more, ">", escape(say), "</text>\n");
  };
  const auto box = [&](double x, int64_t y, double w, int64_t h, const std::string& style, const std::string& hover) {
    out += text("<rect x=\"", x, "\" y=\"", y, "\" width=\"", w, "\" height=\"", h, "\" rx=\"2\" ", style, "><title>",
                escape(hover), "</title></rect>\n");
  };
  const auto fill = [](const std::string& colour) { return text("fill=\"", colour, "\""); };
  words(0, 14, title, " font-size=\"14\" font-weight=\"600\"");
  words(0, 32, layers_text(picture) + about(picture) + note);
  int64_t x = 0;
  const auto key = [&](const std::string& style, const std::string& say) {
    box(static_cast<double>(x), 43, 12, 12, style, say);
    words(x + 17, 53, say);
    x += 34 + 7 * static_cast<int64_t>(say.size());
  };
  key(fill(slot_colour[0]), picture.compression == "most_used" ? "a slot: a token that was used most"
                                                               : "a slot and the tokens it stands for");
  key(fill(fifo), "inputs of the FIFO");
  key(fill(own), "the segment that looks");
  key("fill=\"none\" stroke=\"currentColor\" stroke-opacity=\"0.35\"", "forgotten");
  bool hidden = false;
  for (const auto& moment : picture.moments)
    for (const auto& slot : moment.slots) hidden = hidden || slot.hidden;
  if (hidden)
    key(text("fill=\"none\" stroke=\"", slot_colour[0], "\" stroke-dasharray=\"3 2\""), "of two documents: unseen");
  for (int64_t m = 0; m < rows; ++m) {
    const auto& moment = picture.moments[static_cast<size_t>(m)];
    const int64_t y = top + m * row, high = row - 10, end = std::min(moment.begin + picture.segment, picture.tokens);
    words(left - 8, y + 15, std::to_string(moment.begin), " text-anchor=\"end\"");
    const auto span = [&](int64_t from, int64_t to, const std::string& style, int64_t inset, const std::string& hover) {
      box(static_cast<double>(left + from * cell) + 0.75, y + inset, static_cast<double>((to - from) * cell) - 1.5,
          high - 2 * inset, style, hover);
    };
    std::vector<bool> held(static_cast<size_t>(moment.fifo), false);
    for (size_t n = 0; n < moment.slots.size(); ++n) {
      const auto& slot = moment.slots[n];
      const int64_t from = std::max<int64_t>(slot.from, 0);
      std::string hover = text("slot ", n, ": tokens ", from, " to ", slot.to - 1);
      if (slot.first != slot.from || slot.last + 1 != slot.to)
        hover += text(", made of ", slot.first, " to ", slot.last);
      if (slot.hidden) hover += ", of several documents: unseen";
      // Slots keep their shade from line to line: it follows the tokens.
      const int64_t shade = slot.at / std::max<int64_t>(picture.rate, 1) % 2;
      span(from, slot.to,
           slot.hidden ? text("fill=\"none\" stroke=\"", slot_colour[shade], "\" stroke-dasharray=\"3 2\"")
                       : fill(slot_colour[shade]),
           0, hover);
      if (slot.first < slot.from || slot.last >= slot.to) {  // taps beyond its own tokens
        const double from_x = static_cast<double>(left + slot.first * cell) + 2,
                     to_x = static_cast<double>(left + (slot.last + 1) * cell) - 2;
        out += text("<path d=\"M", from_x, " ", y + high + 2 + 3 * shade, "H", to_x, "\" stroke=\"", slot_colour[shade],
                    "\" stroke-width=\"1.5\"/>\n");
      }
      for (int64_t t = from; t < slot.to; ++t) held[static_cast<size_t>(t)] = true;
    }
    for (int64_t t = 0; t < moment.fifo; ++t) {
      if (!held[static_cast<size_t>(t)])
        span(t, t + 1, "fill=\"none\" stroke=\"currentColor\" stroke-opacity=\"0.25\"", 6,
             text("token ", t, ": forgotten"));
    }
    for (int64_t t = moment.fifo; t < moment.begin; ++t)
      span(t, t + 1, fill(fifo), 0, text("token ", t, ": in the FIFO"));
    for (int64_t t = moment.begin; t < end; ++t) span(t, t + 1, fill(own), 0, text("token ", t, ": of the segment"));
  }
  const int64_t bottom = top + rows * row + 6, each = std::max<int64_t>(picture.segment, 1);
  const int64_t ticks = std::max<int64_t>(1, 28 / std::max<int64_t>(1, each * cell) + 1);
  for (int64_t t = 0; t <= picture.tokens; t += each * ticks)
    words(left + t * cell, bottom + 8, std::to_string(t), " text-anchor=\"middle\"");
  words(left, bottom + 26, "token");
  words(0, top - 8, "begins");
  return out + "</svg>\n";
}

}  // namespace kinfolk
