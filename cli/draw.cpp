// draw: a pattern, or what a memory keeps, as text or SVG.
#include <iostream>

#include <CLI/CLI.hpp>

#include "cli/command.h"
#include "kinfolk/core/errors.h"
#include "kinfolk/core/file_writer.h"
#include "kinfolk/eval/plot.h"
#include "kinfolk/eval/sight.h"
#include "kinfolk/nn/model.h"
#include "kinfolk/pattern/draw.h"
#include "kinfolk/pattern/pattern.h"

namespace kinfolk {
namespace {

MatrixPicture picture(const at::Tensor& matrix, const std::string& title) {
  const at::Tensor weights = matrix.to(at::kFloat).contiguous();
  const auto* data = weights.const_data_ptr<float>();
  return {title, weights.size(0), weights.size(1), {data, data + weights.numel()}, 480};
}

}  // namespace

void add_draw(CLI::App& app, int&) {
  struct Flags {
    std::vector<std::string> words;
    int64_t length = 24;
    std::string svg;
    std::vector<std::string> sets;
  };
  auto flags = std::make_shared<Flags>();
  auto* command =
      app.add_subcommand("draw", "Show a pattern of attention, or who sees whom in a member (draw memory RECIPE)");
  command->add_option("what", flags->words, "A pattern, or: memory RECIPE")->required()->type_name("");
  add_count(*command, "--length", flags->length, 1, "Positions to draw, 256 at most");
  command->add_option("--svg", flags->svg, "Write an SVG picture to this file instead of text")->type_name("PATH");
  add_set(*command, flags->sets, "With memory: changes a setting of the recipe; may be repeated");
  command->footer(
      "Examples: kinfolk draw \"causal & window(4)\"\n"
      "          kinfolk draw memory transformer_xl --length 16");
  command->callback([flags] {
    if (flags->length > 256) refuse("[--length] expected at most 256; found ", flags->length);
    at::Tensor matrix;
    std::string title;
    if (flags->words[0] == "memory") {
      if (flags->words.size() != 2)
        refuse("[draw] expected `draw memory RECIPE`; found ", flags->words.size(), " words");
      Recipe recipe = load_recipe(flags->words[1]);
      for (const auto& set : flags->sets) override_recipe(recipe, set);
      title = flags->words[1] + ": which token j (across) changes the output after token i (down), one layer a group";
      matrix = sight_of(recipe, flags->length);
    } else {
      if (!flags->sets.empty()) refuse("[draw.--set] expected only with `draw memory RECIPE`; found a pattern");
      std::string text;
      for (const auto& word : flags->words) text += (text.empty() ? "" : " ") + word;
      const auto pattern = parse_pattern(text);
      title = pattern->text() + ": query i (down) sees key j (across)";
      matrix = draw_matrix(*pattern, flags->length);
    }
    if (flags->svg.empty()) {
      std::cout << draw_text(matrix, title);
    } else {
      write_file(flags->svg, svg(picture(matrix, title)));
    }
  });
}

}  // namespace kinfolk
