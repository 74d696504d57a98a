// What list, describe, explain, draw, check and bench print.
#include <nlohmann/json.hpp>

#include "tests/cli/program.h"

namespace kinfolk {
namespace {

class Show : public ProgramTest {
 protected:
  std::string out(const std::vector<std::string>& words) const {
    const ProgramResult ran = run(words);
    EXPECT_EQ(ran.status, 0) << words[0] << ": " << ran.err;
    EXPECT_EQ(ran.err, "");
    return ran.out;
  }
};

TEST_F(Show, ListNamesEveryRecipe) {
  const char* source = std::getenv("KINFOLK_SOURCE");
  ASSERT_NE(source, nullptr);
  const std::string plain = out({"list"}), forms = out({"list", "--forms"}), page = out({"list", "--markdown"});
  int64_t count = 0;
  for (const auto& entry : std::filesystem::directory_iterator(std::filesystem::path(source) / "recipes")) {
    if (entry.path().extension() != ".toml") continue;
    ++count;
    const std::string name = entry.path().stem().string();
    EXPECT_TRUE(has("\n" + plain, "\n" + name + " ")) << name;
    EXPECT_TRUE(has("\n" + forms, "\n" + name + " ")) << name;
    EXPECT_TRUE(has(page, "| `" + name + "` |")) << name;
  }
  EXPECT_GE(count, 14);
  EXPECT_EQ(std::count(plain.begin(), plain.end(), '\n'), count);
  const std::string components = out({"list", "--components"});
  for (const char* part : {"branch", "attention", "memory", "segment", "knn_lm"}) EXPECT_TRUE(has(components, part));
}

TEST_F(Show, Describe) {
  const std::string both = out({"describe", "rope"});  // a component and a recipe
  for (const char* part : {"qk step rope", "recipe rope", "article: ", "[[layers]]"})
    EXPECT_TRUE(has(both, part)) << both;
  EXPECT_TRUE(has(out({"describe", "mlp"}), "  activation")) << out({"describe", "mlp"});
  EXPECT_TRUE(has(out({"describe", "cache"}), "no settings"));
}

TEST_F(Show, Explain) {
  const std::string plain = out({"explain", "rope", "--size", "size.toml"});
  for (const char* part : {"parameters", "layers", "attention", "state"}) EXPECT_TRUE(has(plain, part)) << plain;
  EXPECT_NE(out({"explain", "hwfa_rerope"}), out({"explain", "hwfa_rerope", "--test"}));
  EXPECT_NE(out({"explain", "rope", "--size", "size.toml", "--budget", "20k"}), plain);
  EXPECT_NE(out({"explain", "rope", "--size", "size.toml", "--set", "layers.0.branches.0.heads=1"}), plain);
}

TEST_F(Show, Draw) {
  const std::string band = out({"draw", "causal & window(2)", "--length", "4"});
  for (const char* row : {"#...", "##..", ".##.", "..##"}) EXPECT_TRUE(has(band, row)) << band;
  const std::string memory = out({"draw", "memory", "window", "--length", "6", "--set", "let.window=2"});
  for (const char* row : {"#.....", "##....", ".##..."}) EXPECT_TRUE(has(memory, row)) << memory;
  EXPECT_EQ(out({"draw", "causal", "--svg", "x.svg"}), "");
  EXPECT_EQ(read("x.svg").rfind("<svg", 0), 0u);
}

TEST_F(Show, DrawSeveralHeads) {
  const std::string two = out({"draw", "causal & window(2)", "causal", "--length", "4"});
  for (const char* part : {"1  head 0: causal & window(2)\n", "2  head 1: causal\n", "3  ..##   3  ####\n"})
    EXPECT_TRUE(has(two, part)) << two;
  EXPECT_EQ(out({"draw", "causal & window(2)", "causal", "--length", "4", "--svg", "two.svg"}), "");
  const std::string page = read("two.svg");
  size_t pictures = 0;
  for (size_t at = page.find("<svg"); at != std::string::npos; at = page.find("<svg", at + 1)) ++pictures;
  EXPECT_EQ(pictures, 3u) << page.substr(0, 400);  // the page, and one in it for each head
}

TEST_F(Show, DrawARecipe) {
  const std::string heads = out({"draw", "blockwise", "--length", "8"});
  for (const char* part : {"blocks(4, 8, 0)", "blocks(4, 8, -1)", "heads 0", "7  ......##   7  ....##.."})
    EXPECT_TRUE(has(heads, part)) << heads;
  const std::string layers = out({"draw", "hwfa", "--set", "let.window=2", "--length", "6"});
  for (const char* part : {"layers 0-", "causal & window(2)", "layer ", "5  ....##   5  ######"})
    EXPECT_TRUE(has(layers, part)) << layers;
  // Without a length, one that shows the pattern.
  const std::string wide = out({"draw", "window"});
  EXPECT_TRUE(has(wide, "a character is") && has(wide, "+")) << wide;
}

TEST_F(Show, DrawFacts) {
  const std::string given = out({"draw", "prefix(@prefix) | causal", "--length", "5", "--prefix", "3"});
  for (const char* part : {"with prefix 3", "0  ###..", "3  ####."}) EXPECT_TRUE(has(given, part)) << given;
  EXPECT_TRUE(has(out({"draw", "prefix_lm"}), "with prefix 8"));
  const std::string global =
      out({"draw", "causal & (window(1) | global(@global))", "--length", "5", "--global", "0,3"});
  for (const char* part : {"with global 0 3", "2  #.#..", "3  ####.", "4  #..##"})
    EXPECT_TRUE(has(global, part)) << global;
  const std::string apart = out({"draw", "causal", "--length", "5", "--documents", "2"});
  for (const char* part : {"1  ##...", "2  ..#..", "4  ..###"}) EXPECT_TRUE(has(apart, part)) << apart;
  const std::string memory = out({"draw", "memory", "prefix_lm", "--length", "5", "--prefix", "3"});
  EXPECT_TRUE(has(memory, "0  ###..")) << memory;
}

TEST_F(Show, DrawTheMemoryOfEachKind) {
  const std::string segment = out({"draw", "memory", "transformer_xl", "--length", "9"});
  // Segments of 3 that remember 3.
  for (const char* part :
       {"drawn small: segment = 3, memory = 3", "2  ###......", "3  ####.....", "6  ...####..", "8  ...######"})
    EXPECT_TRUE(has(segment, part)) << segment;
}

TEST_F(Show, DrawTheSlotsOfACompressiveMemory) {
  const std::string slots = out({"draw", "memory", "compressive"});
  for (const char* part : {"drawn small: segment = 8, memory = 8, slots = 8", "   8  mmmmmmmmqqqqqqqq\n",
                           "  24  [--][--][--][--]mmmmmmmmqqqqqqqq\n", "..[--][--]"})
    EXPECT_TRUE(has(slots, part)) << slots;
  const std::string set = out({"draw", "memory", "compressive", "--set", "let.segment=4", "--set", "let.memory=4",
                               "--set", "let.slots=2", "--set", "let.rate=2", "--length", "20", "--documents", "5"});
  EXPECT_TRUE(has(set, "  12  ....XX[]mmmmqqqq\n")) << set;
  EXPECT_EQ(out({"draw", "memory", "compressive", "--svg", "slots.svg"}), "");
  EXPECT_TRUE(has(read("slots.svg"), "<svg"));
}

TEST_F(Show, DrawnSmallUnlessTheSizesWereSet) {
  const std::string used =
      out({"draw", "memory", "compressive", "--set", "layers.0.branches.0.memory.compress=most_used"});
  EXPECT_TRUE(has(used, "drawn small: segment = 8") && has(used.substr(used.find("forgotten") + 9), "o")) << used;
  EXPECT_FALSE(has(used, "no slot")) << used;
  const std::string kept =
      out({"draw", "memory", "transformer_xl", "--length", "9", "--set", "layers.0.branches.0.memory.keep=keys"});
  EXPECT_TRUE(has(kept, "drawn small: segment = 3")) << kept;
  for (const std::string size : {"let.slots=64", "layers.0.branches.0.memory.slots=64"}) {
    const std::string large = out({"draw", "memory", "compressive", "--set", size});
    EXPECT_FALSE(has(large, "drawn small")) << large;
    EXPECT_TRUE(has(large, "no slot in 256 tokens") && has(large, "after 256; a smaller segment")) << large;
  }
  const std::string brief = out({"draw", "memory", "compressive", "--length", "12"});
  EXPECT_TRUE(has(brief, "no slot in 12 tokens") && has(brief, "after 16; --length 17")) << brief;
}

TEST_F(Show, CheckAndBench) {
  const std::string laws = out({"check", "window"});
  EXPECT_TRUE(has(laws, "window ") && has(laws, "laws hold")) << laws;
  EXPECT_FALSE(has(laws, "BROKEN")) << laws;
  const auto rows =
      nlohmann::json::parse(out({"bench", "lstm", "--size", "size.toml", "--lengths", "32,64", "--json"}));
  ASSERT_EQ(rows.size(), 2u);
  EXPECT_EQ(rows[1]["member"], "lstm");
  EXPECT_EQ(rows[1]["length"], 64);
  EXPECT_GT(rows[1]["read_tokens_per_second"].get<double>(), 0);
  EXPECT_EQ(rows[0]["state_bytes"], rows[1]["state_bytes"]);
  const ProgramResult beyond = run({"bench", "gpt", "--size", "size.toml", "--lengths", "64"});
  EXPECT_EQ(beyond.status, 0);
  EXPECT_TRUE(has(beyond.err, "positions end at 32")) << beyond.err;
}

}  // namespace
}  // namespace kinfolk
