#include "kinfolk/eval/study.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "kinfolk/core/errors.h"
#include "kinfolk/nn/model.h"

namespace kinfolk {
namespace {

namespace fs = std::filesystem;

class Studies : public testing::Test {
 protected:
  Studies() {
    std::string name = (fs::temp_directory_path() / "kinfolk-study-XXXXXX").string();
    if (!mkdtemp(name.data())) throw std::runtime_error("no folder for a test");
    folder = name;
  }
  ~Studies() override {
    std::error_code ignored;
    fs::remove_all(folder, ignored);
  }
  std::string write(const std::string& text) const {
    std::ofstream(folder / "mine.toml") << text;
    return (folder / "mine.toml").string();
  }
  /// A file, and what the error that refuses it must say.
  using Cases = std::vector<std::pair<std::string, std::vector<std::string>>>;
  void expect_refused(const Cases& cases) const {
    for (const auto& [text, parts] : cases) {
      SCOPED_TRACE(text);
      try {
        read_study(write(text));
        ADD_FAILURE() << "nothing was refused";
      } catch (const UsageError& error) {
        for (const auto& part : parts)
          EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << part << " in " << error.what();
      }
    }
  }
  fs::path folder;
};

TEST_F(Studies, ReadsMembersAndWhatIsAppliedToThem) {
  const Study study = read_study(write(R"(about = "words"
[study]
size = "tiny"
context = 64
lengths = [256, 64, 128]
windows = 3
last = 16
reference = "far"
[train]
tokens = 1000
[[members]]
recipe = "rope"
[[members]]
recipe = "window"
name = "narrow"
group = "patterns"
set = { "let.window" = 8 }
[[after]]
name = "far"
member = "rope"
mode = "blocks"
set = { "layers.0.branches.0.qk" = [{ kind = "rope_pi", factor = 2.0 }, "log_n"] }
)"));
  EXPECT_EQ(study.name, "mine");
  EXPECT_EQ(study.about, "words");
  EXPECT_EQ(study.settings.context, 64);
  EXPECT_EQ(study.settings.lengths, (std::vector<int64_t>{64, 128, 256}));
  EXPECT_EQ(study.settings.windows, 3);
  EXPECT_EQ(study.settings.last, 16);
  EXPECT_EQ(*study.train.find("tokens")->as<int64_t>(), 1000);
  ASSERT_EQ(study.members.size(), 2u);
  EXPECT_EQ(study.members[0].name, "rope");
  EXPECT_EQ(study.members[0].group, "trained in");
  EXPECT_EQ(study.members[1].name, "narrow");
  EXPECT_EQ(study.members[1].group, "patterns");
  ASSERT_EQ(study.after.size(), 1u);
  EXPECT_EQ(study.after[0].member, "rope");
  EXPECT_EQ(study.after[0].group, "applied afterwards");
  EXPECT_EQ(study.after[0].mode, "blocks");
  EXPECT_EQ(assignments(study.after[0].set),
            (std::vector<std::string>{R"(layers.0.branches.0.qk=[{ kind = "rope_pi", factor = 2.0 }, "log_n"])"}));
}

/// What stands in the file and what follows --set make the same recipe.
TEST_F(Studies, SettingsAreThoseOfSet) {
  const Study study =
      read_study(write("[study]\n[[members]]\nrecipe = \"rope\"\n[[after]]\nname = \"far\"\nmember = \"rope\"\nset = { "
                       "\"layers.0.branches.0.qk\" = [{ kind = \"rerope\", window = 32 }, \"log_n\"] }\n"));
  Recipe here = load_recipe("rope"), there = load_recipe("rope");
  apply_settings(here.tree, study.after[0].set);
  for (const auto& set : assignments(study.after[0].set)) override_recipe(there, set);
  EXPECT_EQ(write_toml(here.tree), write_toml(there.tree));
  EXPECT_NE(write_toml(here.tree), write_toml(load_recipe("rope").tree));
}

TEST_F(Studies, RefusesWithThePlace) {
  const std::string rope = "[[members]]\nrecipe = \"rope\"\n";
  const Cases cases = {
      {"[study]\n", {"mine.toml: ", "[members]", "none"}},
      {"[study]\nsise = \"tiny\"\n" + rope, {"mine.toml:2:", "study.sise", "did you mean size?"}},
      {"[study]\nlengths = [0]\n" + rope, {"mine.toml:2:12", "study.lengths[0]", "at least 1"}},
      {"[study]\nwindows = 1.5\n" + rope, {"mine.toml:2:", "study.windows", "an integer"}},
      {"[study]\n[layers]\n" + rope, {"mine.toml:2:", "[layers]", "known: about study train members after"}},
      {"study = 3\n" + rope, {"mine.toml:1:", "[study]", "a table"}},
      {"[study]\n[[members]]\n", {"mine.toml:2:1", "members[0].recipe", "none"}},
      {"[study]\n" + rope + rope, {"mine.toml:4:1", "each name once", "rope twice"}},
      {"[study]\n[[members]]\nrecipe = \"rope\"\nname = \"a/b\"\n", {"mine.toml:2:1", "letters", "a/b"}},
      {"[study]\n[[members]]\nrecipe = \"rope\"\nset = 3\n", {"mine.toml:4:1", "members[0].set", "a table"}},
      {"[study]\n" + rope + "[[after]]\nname = \"x\"\nmember = \"rpoe\"\n", {"mine.toml:4:1", "did you mean rope?"}},
      {"[study]\n" + rope + "[[after]]\nname = \"x\"\nmember = \"rope\"\n", {"mine.toml:4:1", "after[0].set", "none"}},
      {"[study]\n" + rope + "[[after]]\nname = \"x\"\nmember = \"rope\"\nmode = \"block\"\n",
       {"mine.toml:7:1", "after[0].mode", "did you mean blocks?"}},
      {"[study]\nreference = \"rop\"\n" + rope, {"mine.toml", "study.reference", "did you mean rope?"}}};
  expect_refused(cases);
}

TEST_F(Studies, SettingsThatDoNotFitNameTheirPlace) {
  const Study study =
      read_study(write("[study]\n[[members]]\nrecipe = \"rope\"\n[[after]]\nname = \"far\"\nmember = \"rope\"\n"
                       "set = { \"layrs.0.branches.0.qk\" = [\"rope\"] }\n"));
  Recipe recipe = load_recipe("rope");
  try {
    apply_settings(recipe.tree, study.after[0].set);
    ADD_FAILURE() << "nothing was refused";
  } catch (const UsageError& error) {
    EXPECT_NE(std::string(error.what()).find("mine.toml:7:"), std::string::npos) << error.what();
    EXPECT_NE(std::string(error.what()).find("did you mean layers?"), std::string::npos) << error.what();
  }
}

/// Every study that is shipped can be planned: its members build, and what is applied keeps their parameters.
TEST(ShippedStudies, Build) {
  int64_t found = 0;
  for (const auto& file : fs::directory_iterator(fs::path(share_folder()) / "recipes/studies")) {
    SCOPED_TRACE(file.path().string());
    EXPECT_EQ(study_file(file.path().stem().string()), file.path().string());
    const Study study = read_study(file.path().string());
    ++found;
    Size size = load_size(study.settings.size);
    if (study.settings.context > 0) size.context = study.settings.context;
    const auto count = [&](const Recipe& recipe) {
      return Model::make(recipe, size, 1, at::TensorOptions().device(at::kMeta))->parameter_count();
    };
    for (const auto& member : study.members) {
      Recipe recipe = load_recipe(member.recipe);
      apply_settings(recipe.tree, member.set);
      const int64_t own = count(recipe);
      for (const auto& entry : study.after) {
        if (entry.member != member.name) continue;
        SCOPED_TRACE(entry.name);
        Recipe applied = at_test(recipe);
        apply_settings(applied.tree, entry.set);
        EXPECT_EQ(count(applied), own);
      }
    }
  }
  EXPECT_GE(found, 2);
}

TEST(ShippedStudies, NamesOfRecipesAreNone) {
  EXPECT_EQ(study_file("rope"), "");
  EXPECT_EQ(study_file("nowhere.toml"), "");
  EXPECT_EQ(study_file((fs::path(share_folder()) / "recipes/rope.toml").string()), "");
}

constexpr auto kTasks = R"(
[[members]]
recipe = "rope"
unlimited = true
[[tasks]]
name = "four"
data = "recall:mqar,pairs=4"
chart = "Recall"
axis = "pairs"
at = 4
state = "16Ki"
lanes = 8
[[tasks]]
name = "eight"
data = "recall:mqar,pairs=8"
chart = "Recall"
at = 8
of = "four"
[[tasks]]
name = "sixteen"
data = "recall:mqar,pairs=16"
chart = "Recall"
at = 16
from = "four"
)";

TEST_F(Studies, ReadsTasks) {
  const Study study = read_study(write(kTasks));
  ASSERT_EQ(study.tasks.size(), 3u);
  EXPECT_TRUE(study.members[0].unlimited);
  EXPECT_EQ(study.tasks[0].state, "16Ki");
  EXPECT_EQ(study.tasks[0].lanes, 8);
  EXPECT_EQ(study.tasks[1].of, "four");
  EXPECT_EQ(study.tasks[1].at, 8);
  EXPECT_EQ(study.tasks[2].from, "four");
}

TEST_F(Studies, RefusesTasksThatCannotBe) {
  const std::string head = "[[members]]\nrecipe = \"rope\"\n[[tasks]]\nchart = \"c\"\nname = \"a\"\n";
  const auto refused = [&](const std::string& text, const std::string& words) {
    expect_refused({{text, {words, "mine.toml"}}});
  };
  refused(head + "data = \"book.txt\"\n", "expected a task of recall");
  refused(head, "expected a task of recall");
  refused(head + "data = \"recall:mqar\"\nof = \"b\"\n", "expected the name of a task before it");
  refused(head + "data = \"recall:mqar\"\nof = \"a\"\n", "expected the name of a task before it");
  refused(head + "data = \"recall:mqar\"\nfrom = \"a\"\n", "expected the name of a task before it that is learned");
  refused(std::string(kTasks) + "[[tasks]]\nname = \"x\"\nchart = \"c\"\ndata = \"recall:mqar\"\nfrom = \"eight\"\n",
          "expected the name of a task before it that is learned");
  refused(head + "data = \"recall:mqar\"\npairs = 3\n", "expected a known key");
  refused(std::string(kTasks) + "[[tasks]]\nname = \"four\"\nchart = \"c\"\ndata = \"recall:mqar\"\n", "twice");
  refused(std::string(kTasks) +
              "[[tasks]]\nname = \"x\"\nchart = \"c\"\ndata = \"recall:mqar\"\nof = \"four\"\nlanes = 2\n",
          "nothing is trained");
  refused(std::string(kTasks) + "[[after]]\nname = \"x\"\nmember = \"rope\"\nmode = \"blocks\"\n", "beside [[tasks]]");
}

TEST_F(Studies, ReadsScaling) {
  const Study study = read_study(write(R"toml(about = "cost"
[scaling]
size = "tiny"
lengths = [256, 64, 128, 64]
reference = "rope"
without = "none"
fit_from = 64
rounds = 1
seconds = 0.5
[[members]]
recipe = "rope"
until = 128
[[members]]
recipe = "rope"
name = "none"
set = { "layers.0.branches.0.pattern" = "causal & window(1)" }
)toml"));
  ASSERT_TRUE(study.scaling);
  EXPECT_EQ(study.scaling->lengths, (std::vector<int64_t>{64, 128, 256}));
  EXPECT_EQ(study.scaling->size, "tiny");
  EXPECT_EQ(study.scaling->reference, "rope");
  EXPECT_EQ(study.scaling->without, "none");
  EXPECT_EQ(study.scaling->rounds, 1);
  EXPECT_EQ(study.scaling->seconds, 0.5);
  EXPECT_EQ(study.members[0].until, 128);
  EXPECT_EQ(study.members[1].until, 0);
  EXPECT_EQ(study_file(study.file), study.file);
  const Study usual = read_study(write("[scaling]\n[[members]]\nrecipe = \"window\"\n"));
  EXPECT_EQ(usual.scaling->lengths.front(), 1024);
  EXPECT_EQ(usual.scaling->lengths.back(), 131072);
}

TEST_F(Studies, RefusesScalingThatCannotBe) {
  const std::string rope = "[[members]]\nrecipe = \"rope\"\n";
  const Cases cases = {
      {"[scaling]\nlenghts = [64]\n" + rope, {"mine.toml:2:", "scaling.lenghts", "did you mean lengths?"}},
      {"[scaling]\nlengths = [64, 0]\n" + rope, {"mine.toml:2:16", "scaling.lengths[1]", "at least 1"}},
      {"[scaling]\nseconds = -1\n" + rope, {"mine.toml:2:", "scaling.seconds"}},
      {"scaling = 3\n" + rope, {"mine.toml:1:", "[scaling]", "a table"}},
      {"[scaling]\n[study]\nsize = \"tiny\"\n" + rope, {"mine.toml:2:", "[study]", "beside [scaling]"}},
      {"[scaling]\n" + rope + "[train]\ntokens = 3\n", {"mine.toml:4:", "[train]", "nothing is trained"}},
      {"[scaling]\n" + rope + "[[after]]\nname = \"x\"\nmember = \"rope\"\nmode = \"blocks\"\n",
       {"mine.toml:4:", "[after]", "beside [scaling]"}},
      {"[scaling]\nreference = \"rop\"\n" + rope, {"mine.toml:2:1", "scaling.reference", "did you mean rope?"}},
      {"[scaling]\nwithout = \"nothing\"\n" + rope, {"mine.toml:2:1", "scaling.without", "found nothing"}},
      {"[scaling]\n" + rope + "mode = \"stream\"\n", {"mine.toml:2:1", "members[0]", "group, mode"}},
      {"[scaling]\n" + rope + "unlimited = true\n", {"mine.toml:2:1", "unlimited"}},
      {"[scaling]\n" + rope + "until = 4096\n", {"mine.toml:2:1", "scaling.fit_from", "at least two", "1 of rope"}},
      {"[scaling]\nlengths = [64, 128]\n" + rope, {"mine.toml:3:1", "from 4096 on", "found 0 of rope"}},
      {"[study]\n" + rope + "until = 64\n", {"mine.toml:2:1", "members[0].until", "with [scaling]"}}};
  expect_refused(cases);
}

}  // namespace
}  // namespace kinfolk
