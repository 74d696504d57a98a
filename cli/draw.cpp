// draw: a pattern, or what a memory keeps, as text or SVG.
#include <fstream>
#include <iostream>

#include <CLI/CLI.hpp>

#include "cli/command.h"
#include "kinfolk/core/errors.h"
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
    std::string svg, size = "tiny";
    std::vector<std::string> sets;
  };
  auto flags = std::make_shared<Flags>();
  auto* command = app.add_subcommand(
      "draw",
      "A pattern (`draw \"causal & window(4)\"`), or who sees whom in a member with its memory (`draw memory RECIPE`)");
  command->add_option("what", flags->words, "PATTERN, or: memory RECIPE")->required();
  command->add_option("--length", flags->length, "Positions to draw")->capture_default_str()->check(CLI::Range(1, 256));
  command->add_option("--svg", flags->svg, "Write an SVG picture to this file instead of text");
  command->add_option("--set", flags->sets, "With memory: key=value in the recipe")->allow_extra_args(false);
  command->callback([flags] {
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
      std::ofstream out(flags->svg, std::ios::binary);
      out << svg(picture(matrix, title));
      out.flush();
      if (!out) fail("[draw.--svg] expected a file that can be written; found ", flags->svg);
    }
  });
}

}  // namespace kinfolk
