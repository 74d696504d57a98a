// draw: patterns, those of a recipe by layer and head, or what a member's memory keeps, as text or SVG.
#include <cmath>
#include <iostream>

#include <CLI/CLI.hpp>

#include "cli/command.h"
#include "kinfolk/core/errors.h"
#include "kinfolk/core/file_writer.h"
#include "kinfolk/eval/markup.h"
#include "kinfolk/eval/plot.h"
#include "kinfolk/eval/sight.h"
#include "kinfolk/eval/slots.h"
#include "kinfolk/nn/model.h"
#include "kinfolk/pattern/draw.h"
#include "kinfolk/pattern/pattern.h"

namespace kinfolk {
namespace {

using Facts = std::map<std::string, at::Tensor>;

constexpr int64_t kShortest = 24, kLongest = 1536, kLongestMemory = 256;
constexpr int64_t kLengths[] = {kShortest, 64, 128, 256, 512, 1024};  // whole multiples of what a picture can show

struct Flags {
  std::vector<std::string> words, sets;
  int64_t length = 0;  // 0: what shows the picture
  std::string svg, prefix, global, documents;
};

struct Pictures {
  std::string title;
  std::vector<Drawing> each;
};

std::vector<int64_t> places(const std::string& typed, const std::string& flag) {
  std::vector<int64_t> out;
  std::istringstream in(typed);
  for (std::string one; std::getline(in, one, ',');) out.push_back(parse_count(one, flag, 0));
  if (out.empty()) refuse("[", flag, "] expected positions such as 0,8; found nothing");
  return out;
}

/// The facts of one lane: as typed, else those a picture has by default. Refuses what lies outside the picture.
Facts facts_for(const Flags& flags, int64_t length) {
  Facts facts = drawn_facts(length);
  const auto within = [&](int64_t place, const std::string& flag, int64_t most) {
    if (place > most) refuse("[", flag, "] expected at most ", most, " with ", length, " positions; found ", place);
    return place;
  };
  if (!flags.prefix.empty()) {
    const int64_t prefix = within(parse_count(flags.prefix, "--prefix", 0), "--prefix", length);
    facts["prefix"] = at::full({1}, prefix, at::kLong);
  }
  if (!flags.global.empty()) {
    const auto global = places(flags.global, "--global");
    for (const int64_t place : global) within(place, "--global", length - 1);
    facts["global"] = at::tensor(global).unsqueeze(0);
  }
  if (!flags.documents.empty()) {
    const at::Tensor segment = at::zeros({1, length}, at::kLong);
    for (const int64_t place : places(flags.documents, "--documents")) {
      segment.slice(1, within(place, "--documents", length - 1)).add_(1);
    }
    facts["segment"] = segment;
  }
  return facts;
}

int64_t farthest_place(const Flags& flags) {
  int64_t most = flags.prefix.empty() ? 0 : parse_count(flags.prefix, "--prefix", 0);
  for (const auto& [typed, flag] : {std::pair(flags.global, "--global"), {flags.documents, "--documents"}})
    if (!typed.empty())
      for (const int64_t place : places(typed, flag)) most = std::max(most, place + 1);
  return most;
}

/// Refuses a fact that nothing in the pictures reads; `words`: the patterns' text.
void check_facts(const Flags& flags, const std::string& words) {
  for (const auto& [typed, name] : {std::pair(flags.prefix, "prefix"), {flags.global, "global"}})
    if (!typed.empty() && words.find(text("@", name)) == std::string::npos) {
      refuse("[--", name, "] expected a pattern that reads @", name, "; found none");
    }
}

/// The facts that were used, for a title.
std::string facts_text(const Facts& facts, const std::string& words) {
  std::string out;
  const auto add = [&](const char* name, const std::string& value) {
    out += text(out.empty() ? ", with " : ", ", name, " ", value);
  };
  if (words.find("@prefix") != std::string::npos) add("prefix", text(facts.at("prefix").item<int64_t>()));
  if (words.find("@global") != std::string::npos) {
    std::string list;
    const at::Tensor global = facts.at("global").view({-1});
    for (int64_t n = 0; n < global.size(0); ++n) list += text(n ? " " : "", global[n].item<int64_t>());
    add("global", list);
  }
  if (facts.count("segment")) add("documents", text("apart"));
  return out;
}

constexpr auto kSees = "query i (down) sees key j (across)";

Pictures draw_patterns(const Flags& flags, int64_t length) {
  const Facts facts = facts_for(flags, length);
  Pictures out;
  std::string words;
  for (size_t n = 0; n < flags.words.size(); ++n) {
    const auto pattern = parse_pattern(flags.words[n]);
    const std::string head = flags.words.size() > 1 ? text("head ", n, ": ") : "";
    out.each.push_back({head + pattern->text(), draw_matrix(pattern, length, facts)});
    words += pattern->text() + "\n";
  }
  check_facts(flags, words);
  out.title = kSees + facts_text(facts, words);
  return out;
}

/// "0-2, 5" of 0, 1, 2, 5.
std::string ranges(const std::vector<int64_t>& numbers) {
  std::string out;
  for (size_t i = 0; i < numbers.size();) {
    size_t end = i;
    while (end + 1 < numbers.size() && numbers[end + 1] == numbers[end] + 1) ++end;
    out += text(out.empty() ? "" : ", ", numbers[i]);
    if (end > i) out += text("-", numbers[end]);
    i = end + 1;
  }
  return out;
}

Recipe recipe_of(const std::string& name, const std::vector<std::string>& sets) {
  Recipe recipe = load_recipe(name);
  for (const auto& set : sets) override_recipe(recipe, set);
  return recipe;
}

/// One picture for each pattern of each kind of layer; equal layers together.
Pictures draw_recipe(const Flags& flags, int64_t length) {
  const Recipe recipe = recipe_of(flags.words[0], flags.sets);
  Size size = load_size("small");
  size.context = length;
  const auto model = Model::make(recipe, size, 1, at::TensorOptions().device(at::kMeta));
  struct Kind {
    std::vector<std::shared_ptr<const Pattern>> heads;
    std::vector<int64_t> layers;
  };
  std::vector<Kind> kinds;
  std::vector<std::string> names;
  for (const auto& item : model->named_modules()) {
    const auto branch = std::dynamic_pointer_cast<Branch>(item.value());
    if (!branch || item.key().rfind("layers.", 0) != 0) continue;
    const auto heads = branch->patterns();
    if (heads.empty()) continue;
    std::string name;
    for (const auto& head : heads) name += head->text() + "\n";
    const auto found = static_cast<size_t>(std::find(names.begin(), names.end(), name) - names.begin());
    if (found == names.size()) names.push_back(name), kinds.push_back({heads, {}});
    const int64_t layer = std::stoll(item.key().substr(7));
    if (kinds[found].layers.empty() || kinds[found].layers.back() != layer) kinds[found].layers.push_back(layer);
  }
  if (kinds.empty()) {
    refuse("[draw] expected a recipe with a pattern of attention; found none in ", recipe.name, " (see draw memory ",
           recipe.name, ")");
  }
  Pictures out;
  std::string words;
  const Facts facts = facts_for(flags, length);
  for (const Kind& kind : kinds) {
    const std::string where = kinds.size() == 1 ? ""
                                                : text(kind.layers.size() > 1 ? "layers " : "layer ",
                                                       ranges(kind.layers), kind.heads.size() > 1 ? ", " : ": ");
    std::vector<std::string> once;
    for (size_t n = 0; n < kind.heads.size(); ++n) {
      const std::string own = kind.heads[n]->text();
      if (std::find(once.begin(), once.end(), own) != once.end()) continue;
      once.push_back(own);
      std::vector<int64_t> heads;
      for (int64_t h = 0; h < std::max<int64_t>(size.heads, static_cast<int64_t>(kind.heads.size())); ++h)
        if (kind.heads[static_cast<size_t>(h) % kind.heads.size()]->text() == own) heads.push_back(h);
      const std::string who =
          kind.heads.size() == 1 ? "" : text(heads.size() > 1 ? "heads " : "head ", ranges(heads), ": ");
      out.each.push_back({where + who + own, draw_matrix(kind.heads[n], length, facts)});
      words += own + "\n";
    }
  }
  check_facts(flags, words);
  out.title = kSees + facts_text(facts, words);
  if (out.each.size() > 1) out.title = recipe.name + ": " + out.title;
  return out;
}

/// Numbers of [let] made so small that the largest is a third of the picture; what --set says stays.
std::string scale_down(Recipe& recipe, int64_t length) {
  Value* let = recipe.tree.find("let");
  if (!let) return "";
  int64_t largest = 0;
  for (const auto& [name, value] : *let->as<Value::Table>())
    if (const auto* number = value.as<int64_t>()) largest = std::max(largest, *number);
  const int64_t most = std::max<int64_t>(length / 3, 1);
  if (largest <= most) return "";
  std::string said;
  for (auto& [name, value] : *let->as<Value::Table>()) {
    const auto* number = value.as<int64_t>();
    if (!number) continue;
    const double small = static_cast<double>(*number) * static_cast<double>(most) / static_cast<double>(largest);
    value.data = std::max<int64_t>(1, std::llround(small));
    said += text(said.empty() ? " (drawn small: " : ", ", name, " = ", *value.as<int64_t>());
  }
  return said + ")";
}

/// Whether --set says a size itself: a name of [let], or what stands in the place of one or of a number.
bool sets_sizes(const Recipe& recipe, const std::vector<std::string>& sets) {
  const Value* let = recipe.tree.find("let");
  return std::any_of(sets.begin(), sets.end(), [&](const std::string& set) {
    const std::string key = set.substr(0, set.find('='));
    if (key.rfind("let.", 0) == 0) return true;
    Value tree = recipe.tree;
    const size_t dot = key.rfind('.');
    const Value* table = dot == std::string::npos ? nullptr : find_path(tree, key.substr(0, dot));
    const Value* value = table ? table->find(key.substr(dot + 1)) : nullptr;
    const auto* name = value ? value->as<std::string>() : nullptr;
    return value && (value->as<int64_t>() || (name && let && let->find(*name)));
  });
}

Pictures draw_memory(const Flags& flags, int64_t length) {
  Recipe recipe = recipe_of(flags.words[1], {});
  std::string small;
  if (!sets_sizes(recipe, flags.sets)) small = scale_down(recipe, length);
  for (const auto& set : flags.sets) override_recipe(recipe, set);
  const std::string words = write_toml(recipe.tree);
  check_facts(flags, words);
  const Facts facts = facts_for(flags, length);
  return {"which token j (across) changes the output after token i (down), one layer a group" + small +
              facts_text(facts, words),
          {{flags.words[1], sight_of(recipe, length, facts)}}};
}

/// Segments of 8 or so, and all other lengths of [let] as much shorter; the rate of a compression stays.
std::string scale_slots(Recipe& recipe) {
  Value* let = recipe.tree.find("let");
  const Value* segment = let ? let->find("segment") : nullptr;
  const Value* rate = let ? let->find("rate") : nullptr;
  if (!segment || !segment->as<int64_t>()) return "";
  const int64_t c = rate && rate->as<int64_t>() ? std::max<int64_t>(1, *rate->as<int64_t>()) : 1;
  const int64_t drawn = std::max((8 + c - 1) / c, std::min<int64_t>(c, 2)) * c;
  const double times = static_cast<double>(drawn) / static_cast<double>(*segment->as<int64_t>());
  if (times >= 1) return "";
  std::string said;
  for (auto& [name, value] : *let->as<Value::Table>()) {
    const auto* number = value.as<int64_t>();
    if (!number || name == "rate") continue;
    value.data = std::max<int64_t>(1, std::llround(static_cast<double>(*number) * times));
    said += text(said.empty() ? " (drawn small: " : ", ", name, " = ", *value.as<int64_t>());
  }
  return said + ")";
}

/// Where no picture shows a slot: after how many tokens the first one would.
std::string slots_to_come(const std::vector<MemoryPicture>& pictures) {
  int64_t first = INT64_MAX;
  for (const auto& picture : pictures) {
    for (const auto& moment : picture.moments)
      if (!moment.slots.empty()) return "";
    first = std::min(first, first_slot(picture));
  }
  const int64_t drawn = pictures.at(0).tokens;
  return text(
      " (no slot in ", drawn, " tokens: the first one is there when a segment begins after ", first, "; ",
      first < kLongestMemory ? text("--length ", first + 1, " shows it") : "a smaller segment and memory show it", ")");
}

/// The slots of a compressive memory: which tokens each stands for, segment by segment.
void print_slots(const Flags& flags) {
  Recipe recipe = recipe_of(flags.words[1], {});
  const std::string title = flags.words[1] + ": what the memory holds when a segment begins";
  std::string small = sets_sizes(recipe, flags.sets) ? "" : scale_slots(recipe);
  for (const auto& set : flags.sets) override_recipe(recipe, set);
  check_facts(flags, write_toml(recipe.tree));
  std::map<std::string, at::Tensor> facts;
  int64_t length = flags.length;
  if (!flags.documents.empty()) {
    if (length == 0) length = memory_pictures(recipe, 0, kLongestMemory).at(0).tokens;
    facts["segment"] = facts_for(flags, length).at("segment");
  }
  const auto pictures = memory_pictures(recipe, length, kLongestMemory, facts);
  small += slots_to_come(pictures);
  if (!flags.svg.empty()) {
    if (pictures.size() > 1) {
      refuse("[draw.--svg] expected one kind of memory; found ", pictures.size(), " (without --svg all are shown)");
    }
    return write_file(flags.svg, svg(pictures[0], title, small));
  }
  std::cout << title << small << "\n";
  for (const auto& picture : pictures) std::cout << draw_text(picture);
}

/// Whether that is what `draw memory` shows of the recipe.
bool shows_slots(const Flags& flags) {
  if (flags.words[0] != "memory" || flags.words.size() != 2) return false;
  if (!has_slots(recipe_of(flags.words[1], flags.sets))) return false;
  if (flags.length > kLongestMemory) refuse("[--length] expected at most ", kLongestMemory, "; found ", flags.length);
  return true;
}

/// The shortest picture that shows more than a triangle, or a square; the shortest of all when none does.
Pictures fitting(const Flags& flags, const std::function<Pictures(int64_t)>& draw) {
  if (flags.length > 0) return draw(flags.length);
  for (const int64_t length : kLengths) {
    if (length < farthest_place(flags)) continue;
    Pictures out = draw(length);
    for (const auto& one : out.each)
      if (shows_structure(one.matrix)) return out;
  }
  return draw(std::max(kShortest, farthest_place(flags)));
}

/// Text in lines of about `width` characters, broken at spaces.
std::vector<std::string> wrapped(const std::string& words, size_t width) {
  std::vector<std::string> lines{""};
  std::istringstream in(words);
  for (std::string word; in >> word;) {
    if (!lines.back().empty() && lines.back().size() + 1 + word.size() > width) lines.emplace_back();
    lines.back() += (lines.back().empty() ? "" : " ") + word;
  }
  return lines;
}

/// All pictures in one file, up to four side by side.
std::string page(const Pictures& pictures) {
  const auto count = static_cast<int64_t>(pictures.each.size());
  const int64_t across = std::min<int64_t>(count, 4), side = count == 1 ? 480 : 280, gap = 24, line = 18;
  const int64_t width = across * side + (across - 1) * gap;
  const auto letters = static_cast<size_t>(side / 9);  // bold ones are 9 wide, the others 8, with some room
  const std::string whole = text(pictures.title, ", ", pictures.each[0].matrix.size(0), " positions");
  const auto title = wrapped(whole, static_cast<size_t>(width / 8));
  size_t most = 1;
  for (const auto& one : pictures.each) most = std::max(most, wrapped(one.title, letters).size());
  const int64_t head = static_cast<int64_t>(title.size()) * line + 8, label = static_cast<int64_t>(most) * line + 6;
  const int64_t rows = (count + across - 1) / across, height = head + rows * (label + side + gap);
  std::string out =
      text("<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 ", width, " ", height, "\" width=\"", width,
           "\" height=\"", height, "\" font-family=\"system-ui,sans-serif\" font-size=\"13\" fill=\"currentColor\">");
  const auto write = [&](const std::vector<std::string>& lines, int64_t x, int64_t y, const char* weight) {
    for (size_t n = 0; n < lines.size(); ++n)
      out += text("<text x=\"", x, "\" y=\"", y + static_cast<int64_t>(n) * line + 13, "\" font-weight=\"", weight,
                  "\">", escape(lines[n]), "</text>");
  };
  write(title, 0, 0, "400");
  for (int64_t n = 0; n < count; ++n) {
    const auto& one = pictures.each[static_cast<size_t>(n)];
    const int64_t x = n % across * (side + gap), y = head + n / across * (label + side + gap);
    write(wrapped(one.title, letters), x, y, "600");
    const at::Tensor weights = one.matrix.to(at::kFloat).contiguous();
    const auto* data = weights.const_data_ptr<float>();
    const std::string inner =
        svg(MatrixPicture{"", weights.size(0), weights.size(1), {data, data + weights.numel()}, side});
    out += text("<svg x=\"", x, "\" y=\"", y + label, "\" width=\"", side, "\" height=\"", side, "\"", inner.substr(4),
                "\n");
  }
  return out + "</svg>\n";
}

Pictures pictures_of(const Flags& flags) {
  if (flags.words[0] == "memory") {
    if (flags.words.size() != 2) refuse("[draw] expected `draw memory RECIPE`; found ", flags.words.size(), " words");
    const int64_t length = flags.length > 0 ? flags.length : std::max(kShortest, farthest_place(flags));
    if (length > kLongestMemory) refuse("[--length] expected at most ", kLongestMemory, "; found ", length);
    return draw_memory(flags, length);
  }
  if (flags.length > kLongest) refuse("[--length] expected at most ", kLongest, "; found ", flags.length);
  const auto names = recipe_names();
  const auto is_recipe = [&](const std::string& word) {
    return std::find(names.begin(), names.end(), word) != names.end() || word.ends_with(".toml");
  };
  if (is_recipe(flags.words[0])) {
    if (flags.words.size() > 1) refuse("[draw] expected one recipe, or patterns; found ", flags.words.size(), " words");
    return fitting(flags, [&](int64_t length) { return draw_recipe(flags, length); });
  }
  if (!flags.sets.empty()) refuse("[draw.--set] expected only with a recipe; found a pattern");
  return fitting(flags, [&](int64_t length) { return draw_patterns(flags, length); });
}

}  // namespace

void add_draw(CLI::App& app, int&) {
  auto flags = std::make_shared<Flags>();
  auto* command = app.add_subcommand("draw",
                                     "Show patterns of attention, those of a recipe, or who sees whom in a member "
                                     "(draw memory RECIPE): where a memory "
                                     "is compressed, which tokens each slot stands for");
  command->add_option("what", flags->words, "A pattern, one for each head, a recipe, or: memory RECIPE")
      ->required()
      ->type_name("");
  add_count(*command, "--length", flags->length, 1,
            text("Positions to draw, ", kLongest, " at most, with memory ", kLongestMemory))
      ->default_str("what shows the picture");
  command->add_option("--prefix", flags->prefix, "The fact prefix: tokens that everybody sees; else a third of them")
      ->type_name("NUMBER");
  command
      ->add_option("--global", flags->global, "The fact global: positions such as 0,8; else the first and the middle")
      ->type_name("LIST");
  command->add_option("--documents", flags->documents, "Where further documents start, such as 8,16; else there is one")
      ->type_name("LIST");
  command->add_option("--svg", flags->svg, "Write an SVG picture to this file instead of text")->type_name("PATH");
  add_set(*command, flags->sets, "Changes a setting of the recipe; may be repeated");
  command->footer(
      "Examples: kinfolk draw \"causal & window(4)\"\n"
      "          kinfolk draw \"causal & blocks(4, 24, 0)\" \"causal & blocks(4, 24, -1)\"\n"
      "          kinfolk draw blockwise --svg heads.svg\n"
      "          kinfolk draw memory transformer_xl\n"
      "          kinfolk draw memory compressive --svg slots.svg");
  command->callback([flags] {
    if (shows_slots(*flags)) return print_slots(*flags);
    const Pictures pictures = pictures_of(*flags);
    if (flags->svg.empty()) {
      std::cout << draw_text(pictures.each, pictures.title);
    } else {
      write_file(flags->svg, page(pictures));
    }
  });
}

}  // namespace kinfolk
