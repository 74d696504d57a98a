#include "kinfolk/nn/recipe.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include "kinfolk/core/errors.h"
#include "kinfolk/nn/testing.h"

namespace kinfolk {
namespace {

struct RecipeFile : testing::Test {
  std::filesystem::path folder = std::filesystem::temp_directory_path() / text("kinfolk_recipe_", getpid());
  void SetUp() override { std::filesystem::create_directories(folder); }
  void TearDown() override { std::filesystem::remove_all(folder); }
  std::string put(const std::string& name, const std::string& toml) const {
    const std::string path = (folder / name).string();
    std::ofstream(path) << toml;
    return path;
  }
  /// The message of loading this recipe and building it, without the folder's name.
  std::string fault(const std::string& toml, const Size& size = tiny_size(), const std::string& set = "") const {
    try {
      Recipe recipe = load_recipe(put("t.toml", toml));
      if (!set.empty()) override_recipe(recipe, set);
      Model::make(recipe, size, 1, at::TensorOptions().device(at::kMeta));
    } catch (const Error& error) {
      std::string words = error.what();
      const size_t at = words.find(folder.string() + "/");
      return at == std::string::npos ? words : words.erase(at, folder.string().size() + 1);
    }
    return "no error";
  }
};

const std::string kMlp = "[[layers]]\n[[layers.branches]]\nkind = \"mlp\"\n";

TEST_F(RecipeFile, LoadsByNameAndByPath) {
  const Recipe by_name = load_recipe("rope");
  const Recipe by_path = load_recipe(share_folder() + "/recipes/rope.toml");
  EXPECT_EQ(by_name.name, "rope");
  EXPECT_EQ(by_path.name, "rope");
  EXPECT_EQ(write_toml(by_name.tree), write_toml(by_path.tree));
  const auto names = recipe_names();
  EXPECT_TRUE(std::is_sorted(names.begin(), names.end()));
  EXPECT_NE(std::find(names.begin(), names.end(), "rope"), names.end());
  EXPECT_EQ(std::find(names.begin(), names.end(), "tiny"), names.end());
}

TEST_F(RecipeFile, UnknownNamesAreRefusedWithTheNearest) {
  try {
    load_recipe("roep");
    FAIL();
  } catch (const UsageError& error) {
    EXPECT_NE(std::string(error.what()).find("found roep (did you mean rope?); known: " + recipe_names().front()),
              std::string::npos)
        << error.what();
  }
  EXPECT_THROW(load_recipe(""), UsageError);
  EXPECT_THROW(load_recipe("none/here.toml"), UsageError);
  EXPECT_THROW(load_size("tinny"), UsageError);
}

TEST_F(RecipeFile, ExtendsMergesTablesAndReplacesLists) {
  put("base.toml", "about = \"base\"\n[let]\na = 1\nb = 2\n[head]\nkind = \"lm\"\nnorm = \"none\"\n" + kMlp + kMlp);
  const Recipe recipe =
      load_recipe(put("over.toml", "extends = \"base.toml\"\n[let]\nb = 3\n[head]\nnorm = \"before\"\n" + kMlp));
  EXPECT_EQ(recipe.name, "over");
  EXPECT_EQ(recipe.tree.find("extends"), nullptr);
  EXPECT_EQ(*recipe.tree.find("about")->as<std::string>(), "base");
  EXPECT_EQ(write_toml_value(*recipe.tree.find("let")), "{ a = 1, b = 3 }");
  EXPECT_EQ(write_toml_value(*recipe.tree.find("head")), "{ kind = \"lm\", norm = \"before\" }");
  EXPECT_EQ(recipe.tree.find("layers")->as<Value::Array>()->size(), 1u);
  put("third.toml", "extends = \"over.toml\"");
  EXPECT_NE(fault("extends = \"" + (folder / "over.toml").string() + "\"")
                .find("over.toml:1:1: [extends] expected a recipe that extends none"),
            std::string::npos);
  EXPECT_NE(fault("\nextends = \"roep\"").find("t.toml:2:1: [extends] expected a name"), std::string::npos);
}

TEST_F(RecipeFile, FaultsHaveFileLineColumnAndTheNearestKnown) {
  EXPECT_EQ(fault(kMlp), "no error");
  EXPECT_EQ(
      fault("abuot = \"x\"\n" + kMlp),
      "t.toml:1:1: [abuot] expected a known key; found abuot (did you mean about?); known: about article extends let "
      "input layers depth head objective losses train at");
  EXPECT_EQ(fault("[layers]\nkind = \"x\"")
                .rfind("t.toml:1:2: [layers] expected a list of tables, [[layers]]; found a table", 0),
            0u)
      << fault("[layers]\nkind = \"x\"");
  EXPECT_EQ(fault("about = 3\n" + kMlp), "t.toml:1:1: [about] expected text; found an integer");
  EXPECT_NE(fault("about = \"x\"").find("[layers] expected at least one [[layers]]; found none"), std::string::npos);
  EXPECT_EQ(fault("layers = []").rfind("t.toml: [layers] expected at least one", 0), 0u) << fault("layers = []");
  // unknown key
  EXPECT_EQ(
      fault(kMlp + "  raito = 2\n")
          .rfind("t.toml:4:3: [layers.0.branches.0.raito] expected a known key; found raito (did you mean ratio?)", 0),
      0u);
  EXPECT_EQ(fault(kMlp + "[input]\nkind = \"tokens\"\npositon = \"none\"")
                .rfind("t.toml:6:1: [input.positon] expected a known key", 0),
            0u);
  EXPECT_EQ(fault(kMlp + "[head]\nnrom = \"none\"").rfind("t.toml:5:1: [head.nrom] expected a known key", 0), 0u);
  // wrong type
  EXPECT_EQ(fault(kMlp + "ratio = \"two\"\n"),
            "t.toml:4:1: [layers.0.branches.0.ratio] expected a number, 0.001 to 1000; found \"two\"");
  EXPECT_EQ(fault(kMlp + "bias = 1\n"), "t.toml:4:1: [layers.0.branches.0.bias] expected true or false; found 1");
  EXPECT_EQ(fault("input = 3\n" + kMlp),
            "t.toml:1:1: [input] expected a component: its name, or a table with a kind; found an integer");
  // below the minimum
  EXPECT_EQ(fault(kMlp + "ratio = -1\n"), "t.toml:4:1: [layers.0.branches.0.ratio] expected 0.001 to 1000; found -1");
  // unknown kind
  EXPECT_NE(fault("[[layers]]\n[[layers.branches]]\nkind = \"atention\"")
                .find("[layers.0.branches.0] expected a branch; found atention (did you mean attention?)"),
            std::string::npos);
  EXPECT_EQ(fault("[[layers]]\n[[layers.branches]]\nkind = \"atention\"").rfind("t.toml:2:", 0), 0u);
  EXPECT_NE(fault(kMlp + "[depth]\nkind = \"onec\"")
                .find("t.toml:4:2: [depth] expected a depth; found onec (did you mean once?)"),
            std::string::npos)
      << fault(kMlp + "[depth]\nkind = \"onec\"");
  EXPECT_NE(
      fault(kMlp + "[losses]\nponder = \"much\"").find("t.toml:5:1: [losses.ponder] expected a number; found a string"),
      std::string::npos);
  EXPECT_NE(fault(kMlp + "[at.train]\nx = 1").find("[at.train] expected [at.test]"), std::string::npos);
  // malformed
  EXPECT_EQ(fault("about = \n").rfind("t.toml:1:", 0), 0u);
}

TEST_F(RecipeFile, SizesThatContradict) {
  Size size = tiny_size();
  size.heads = 3;
  EXPECT_EQ(fault(kMlp, size), "[size.width] expected a multiple of size.heads (3); found 32");
}

TEST_F(RecipeFile, RepeatsFillTheDepth) {
  Size size = tiny_size();
  size.depth = 5;
  const auto ratios = [&](const std::string& toml) {
    std::string out;
    const auto model = Model::make(load_recipe(put("t.toml", toml)), size, 1, at::TensorOptions().device(at::kMeta));
    for (const auto& [name, weight] : model->weights())
      if (name.find("in.weight") != std::string::npos) out += std::to_string(weight.size(0) / size.feed);
    return out;
  };
  const auto group = [](const std::string& repeat, int ratio) {
    return "[[layers]]\n" + (repeat.empty() ? "" : "repeat = " + repeat + "\n") +
           "[[layers.branches]]\nkind = \"mlp\"\nratio = " + std::to_string(ratio) + "\n";
  };
  EXPECT_EQ(ratios(group("\"all\"", 1)), "11111");
  EXPECT_EQ(ratios(group("\"all but last\"", 1) + group("", 2)), "11112");
  EXPECT_EQ(ratios(group("2", 1) + group("", 2)), "112");  // written out: the recipe says the depth
  EXPECT_EQ(ratios(group("", 3) + group("\"all\"", 1) + group("2", 2)), "31122");
  EXPECT_EQ(ratios(group("\"all\"", 1) + group("\"every 2\"", 2)), "12121");
  EXPECT_EQ(ratios(group("\"all\"", 1) + group("\"every 3\"", 2)), "11211");
  EXPECT_EQ(ratios(group("\"every 7\"", 2) + group("\"all\"", 1)), "11112");  // of a shorter depth the last
  EXPECT_EQ(ratios(group("", 3) + group("\"all\"", 1) + group("\"every 5\"", 2)), "31112");
  EXPECT_EQ(ratios(group("\"all\"", 1) + group("\"layer 3 of 4\"", 2)), "11121");
  EXPECT_EQ(ratios(group("\"layer 1 of 9\"", 2) + group("\"all\"", 1)), "21111");
  EXPECT_EQ(ratios(group("\"all\"", 1) + group("\"layer 2 of 2\"", 2)), "11112");
  EXPECT_NE(fault(group("2", 1) + group("\"every 3\"", 2)).find("or a group that fills it"), std::string::npos);
  EXPECT_NE(fault(group("\"all\"", 1) + group("\"every 2\"", 2) + group("\"every 3\"", 2)).find("found two"),
            std::string::npos);
  for (const char* wrong : {"every", "every ", "every 1", "every two", "every -2", "every 2x", "layer 3",
                            "layer 0 of 4", "layer 5 of 4", "layer 0 of 0", "layer 1 of", "layer 1 of 2 "}) {
    EXPECT_NE(fault(group(std::string("\"") + wrong + "\"", 1)).find("expected a number of layers"), std::string::npos)
        << wrong;
  }
  EXPECT_NE(
      fault(group("\"some\"", 1))
          .find("t.toml:2:1: [layers.0.repeat] expected a number of layers, all, all but last, every N, or layer N "
                "of M; found \"some\""),
      std::string::npos);
  EXPECT_NE(fault(group("0", 1)).find("[layers.0.repeat] expected a number of layers"), std::string::npos);
  EXPECT_NE(fault(group("\"all\"", 1) + group("\"all\"", 1)).find("expected one group that fills the depth"),
            std::string::npos);
  EXPECT_NE(fault(group("\"all but last\"", 1)).find("expected one layer after all but last; found 0"),
            std::string::npos);
  EXPECT_NE(fault(group("\"all\"", 1) + group("2", 1)).find("expected a size.depth above 2"), std::string::npos);
}

TEST_F(RecipeFile, OverridesUseTheSameReader) {
  Recipe recipe = load_recipe("window");
  EXPECT_THROW(override_recipe(recipe, "let.widnow=32"), UsageError);
  override_recipe(recipe, "let.window=32");
  override_recipe(recipe, "layers.0.branches.0.pattern=causal & window(8)");
  override_recipe(recipe, "layers.0.branches.0.qk.0.base=500000.0");
  override_recipe(recipe, "input.position=sinusoidal");
  EXPECT_EQ(*find_path(recipe.tree, "let.window")->as<int64_t>(), 32);
  EXPECT_EQ(*find_path(recipe.tree, "layers.0.branches.0.pattern")->as<std::string>(), "causal & window(8)");
  EXPECT_EQ(write_toml_value(*find_path(recipe.tree, "layers.0.branches.0.qk")),
            "[{ kind = \"rope\", base = 500000.0 }]");
  EXPECT_NO_THROW(Model::make(recipe, tiny_size(), 1, at::TensorOptions().device(at::kMeta)));
  EXPECT_EQ(fault(kMlp, tiny_size(), "layers.0.branches.0.raito=2")
                .rfind("--set layers.0.branches.0.raito: [layers.0.branches.0.raito] expected a known key", 0),
            0u);
  EXPECT_NE(fault(kMlp, tiny_size(), "layers.1.branches.0.ratio=2").find("expected an index below 1; found 1"),
            std::string::npos);
  EXPECT_NE(fault(kMlp, tiny_size(), "layers.0.branches.0.ratio=wide")
                .find("expected a number, 0.001 to 1000; found \"wide\""),
            std::string::npos);
  EXPECT_NE(fault(kMlp, tiny_size(), "abuot=x").find("did you mean about?"), std::string::npos);
  EXPECT_NE(fault(kMlp, tiny_size(), "about").find("expected key=value"), std::string::npos);
  EXPECT_NE(fault(kMlp, tiny_size(), "=1").find("expected key=value"), std::string::npos);
  EXPECT_NE(fault(kMlp, tiny_size(), "layers=1").find("expected a list of tables"), std::string::npos);
}

TEST_F(RecipeFile, AtTestReplacesWhatItNames) {
  const Recipe recipe = load_recipe("hwfa_rerope");
  const Recipe test = at_test(recipe);
  EXPECT_EQ(test.tree.find("at"), nullptr);
  EXPECT_EQ(Spec((*find_path(const_cast<Value&>(test.tree), "layers.1.branches.0.qk")->as<Value::Array>())[0]).kind(),
            "rerope");
  EXPECT_EQ(write_toml_value((*recipe.tree.find("layers")->as<Value::Array>())[0]),
            write_toml_value((*test.tree.find("layers")->as<Value::Array>())[0]));
  // The same weights fit both.
  const auto train = Model::make(recipe, tiny_size()), then = Model::make(test, tiny_size());
  const auto a = train->weights(), b = then->weights();
  ASSERT_EQ(a.size(), b.size());
  for (size_t i = 0; i < a.size(); ++i) EXPECT_EQ(a[i].first, b[i].first);
  EXPECT_EQ(write_toml(at_test(load_recipe("rope")).tree), write_toml(load_recipe("rope").tree));

  const Recipe own = load_recipe(
      put("t.toml", kMlp + "[let]\na = 1\nb = 2\n[at.test]\nlet.b = 5\nhead = { kind = \"lm\", bias = true }\n"));
  EXPECT_EQ(write_toml_value(*at_test(own).tree.find("let")), "{ a = 1, b = 5 }");
  EXPECT_TRUE(at_test(own).tree.find("head"));
  const Recipe wrong = load_recipe(put("t.toml", kMlp + "[at.test]\n\"layers.3.norm\" = \"none\"\n"));
  try {
    at_test(wrong);
    FAIL();
  } catch (const UsageError& error) {
    EXPECT_NE(std::string(error.what()).find("t.toml:5:1: [layers.3] expected an index below 1"), std::string::npos)
        << error.what();
  }
}

TEST_F(RecipeFile, SizesCarryTheirTrainingSettings) {
  for (const char* name : {"tiny", "small", "base"}) {
    Value train;
    const Size size = load_size(name, &train);
    EXPECT_EQ(size.width % size.heads, 0) << name;
    EXPECT_NE(train.find("learning_rate"), nullptr) << name;
  }
  EXPECT_EQ(load_size("tiny").width, 128);
  try {
    load_size(put("mine.toml", "width = 64\nhaeds = 2"));
    FAIL();
  } catch (const UsageError& error) {
    EXPECT_NE(std::string(error.what()).find("mine.toml:2:1: [size.haeds] expected a known key"), std::string::npos)
        << error.what();
  }
}

TEST_F(RecipeFile, NamesOfLetAndOfSizesStandForNumbers) {
  const auto model =
      Model::make(load_recipe(put("t.toml", "[let]\nhalf = 0.5\n" + kMlp + "ratio = \"half\"\n")), tiny_size());
  EXPECT_EQ(model->named_parameters()["layers.0.branches.0.in.weight"].size(0), tiny_size().feed / 2);
  EXPECT_NE(fault(kMlp + "ratio = \"hafl\"\n").find("expected a number"), std::string::npos);
}

TEST_F(RecipeFile, ShareFolderCanBeMoved) {
  std::filesystem::create_directories(folder / "recipes");
  std::ofstream(folder / "recipes" / "only.toml") << kMlp;
  setenv("KINFOLK_SHARE", folder.c_str(), 1);
  EXPECT_EQ(recipe_names(), std::vector<std::string>{"only"});
  EXPECT_EQ(load_recipe("only").name, "only");
  unsetenv("KINFOLK_SHARE");
  EXPECT_NE(recipe_names().size(), 1u);
}

}  // namespace
}  // namespace kinfolk
