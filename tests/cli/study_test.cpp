// A study: members trained alike, others applied to their weights, one report.
#include <nlohmann/json.hpp>

#include "tests/cli/program.h"

namespace kinfolk {
namespace {

using nlohmann::json;

constexpr auto kStudy = R"(about = "a small study"
[study]
size = "size.toml"
context = 16
lengths = [16, 64]
windows = 4
reference = "blocks"
[train]
tokens = 1280
[[members]]
recipe = "rope"
[[members]]
recipe = "alibi"
name = "slopes"
[[after]]
name = "blocks"
member = "rope"
mode = "blocks"
[[after]]
name = "rerope"
member = "rope"
group = "rectified"
set = { "layers.0.branches.0.qk" = [{ kind = "rerope", window = 8 }] }
)";

class StudyProgram : public ProgramTest {
 protected:
  static std::vector<std::string> words(const std::vector<std::string>& more = {}) {
    std::vector<std::string> out = {"compare", "study.toml", "--data",         "book.txt",
                                    "--out",   "out",        "--score-tokens", "256"};
    out.insert(out.end(), more.begin(), more.end());
    return out;
  }
  json member(const std::string& name) const {
    const json report = json::parse(read("out/report.json"));
    for (const auto& one : report["members"])
      if (one["name"] == name) return one;
    ADD_FAILURE() << "no " << name;
    return {};
  }
};

TEST_F(StudyProgram, TrainsAppliesAndReports) {
  write("study.toml", kStudy);
  const ProgramResult ran = run(words());
  ASSERT_EQ(ran.status, 0) << ran.err;
  for (const char* part : {"rope", "slopes", "blocks", "rerope", "the last 8 bytes"})
    EXPECT_TRUE(has(ran.out, part)) << part << ran.out;
  const json report = json::parse(read("out/report.json"));
  EXPECT_EQ(report["trained_length"], 16);
  EXPECT_EQ(report["members"].size(), 4u);
  EXPECT_EQ(report["verdict"]["order"].size(), 2u) << "two were trained";
  EXPECT_EQ(report["members"][0]["tokens"], 1280);
  EXPECT_EQ(member("rerope")["applied"], "rope");
  EXPECT_EQ(member("rerope")["group"], "rectified");
  EXPECT_EQ(member("blocks")["by_length"][1]["mode"], "blocks of 16");
  EXPECT_EQ(member("rope")["by_length"][1]["mode"], "stream");
  // Within its window ReRoPE is RoPE; at 16 beyond it, it is not.
  EXPECT_NE(member("rerope")["by_length"][0]["last"], member("rope")["by_length"][0]["last"]);
  EXPECT_EQ(member("blocks")["by_length"][0]["bits_per_byte"], member("rope")["by_length"][0]["bits_per_byte"]);
  EXPECT_TRUE(member("rope")["by_length"][1]["against"].is_number());
  EXPECT_TRUE(member("blocks")["by_length"][1]["against"].is_null());
  EXPECT_TRUE(exists("out/slopes/seed-1/checkpoints/last.safetensors"));
  const std::string page = read("out/report.html"), table = read("out/table.md");
  for (const char* part : {"a small study", "rectified: the last 8 bytes of each text", "trained in", "holds to"})
    EXPECT_TRUE(has(page, part)) << part;
  EXPECT_TRUE(has(table, "--set 'layers.0.branches.0.qk=[{ kind = \"rerope\", window = 8 }]'")) << table;

  // The flag that the table names gives the same figure by hand.
  const ProgramResult by_hand =
      run({"eval", "out/rope/seed-1", "--data", "book.txt", "--lengths", "64", "--windows", "4", "--last", "8",
           "--json", "--set", "layers.0.branches.0.qk=[{ kind = \"rerope\", window = 8 }]"});
  ASSERT_EQ(by_hand.status, 0) << by_hand.err;
  const json found = json::parse(by_hand.out)["lengths"][0];
  EXPECT_EQ(found["bits_per_byte"], member("rerope")["by_length"][1]["bits_per_byte"]);
  EXPECT_NEAR(found["last_bits_per_byte"], member("rerope")["by_length"][1]["last"].get<double>(), 1e-12);

  // Again: nothing is trained, nothing measured, the same is said; what is added is measured alone.
  const auto time = [&](const char* file) { return std::filesystem::last_write_time(folder / file); };
  const auto trained = time("out/rope/seed-1/checkpoints/last.safetensors");
  const auto measured = time("out/rope/seed-1/examined-rerope.json");
  write("study.toml", std::string(kStudy) + "[[after]]\nname = \"pressed\"\nmember = \"slopes\"\nmode = \"blocks\"\n");
  const ProgramResult again = run(words());
  ASSERT_EQ(again.status, 0) << again.err;
  EXPECT_EQ(time("out/rope/seed-1/checkpoints/last.safetensors"), trained);
  EXPECT_EQ(time("out/rope/seed-1/examined-rerope.json"), measured);
  EXPECT_EQ(json::parse(read("out/report.json"))["members"].size(), 5u);
}

TEST_F(StudyProgram, RefusesBeforeAnythingIsTrained) {
  const std::string study = kStudy;
  const auto with = [&](const std::string& text, const std::vector<std::string>& parts, int status = 2,
                        const std::vector<std::string>& more = {}) {
    SCOPED_TRACE(parts[0]);
    write("study.toml", text);
    expect_refusal(run(words(more)), status, parts);
  };
  with(study + "[[after]]\nname = \"far\"\nmember = \"rope\"\nset = { \"layers.0.branches.0.qk\" = [\"ropee\"] }\n",
       {"study.toml:27:", "did you mean rope?"});
  with(study + "[[after]]\nname = \"far\"\nmember = \"rope\"\nset = { \"layers.0.branches.0.score\" = [\"kerple\"] }\n",
       {"study.toml:24:", "parameters of rope", "far with others"});
  with(study + "[[after]]\nname = \"far\"\nmember = \"roep\"\nmode = \"blocks\"\n", {"study.toml:24:", "did you mean"});
  with("[study]\nlengths = [512]\nwindows = 9\nsize = \"size.toml\"\n[[members]]\nrecipe = \"rope\"\n",
       {"[study.windows]", "at most 1", "found 9"}, 1);
  with("[study]\n[[members]]\nrecipe = \"rope\"\n[train]\ntokns = 3\n", {"study.toml:5:", "did you mean tokens?"});
  with(study, {"[--prompt]", "study"}, 2, {"--prompt", "It"});
  write("study.toml", study);
  expect_refusal(run({"compare", "study.toml", "rope", "--data", "book.txt", "--out", "out"}), 2, {"a study alone"});
  EXPECT_FALSE(exists("out"));
}

TEST_F(StudyProgram, LearnsTasksAndAsksOthers) {
  const std::string study = R"(about = "small tasks"
[study]
size = "size.toml"
[train]
tokens = 640
[[members]]
recipe = "rope"
unlimited = true
[[members]]
recipe = "retnet"
[[tasks]]
name = "two"
data = "recall:mqar,vocabulary=40,length=16,pairs=2"
chart = "Pairs"
axis = "pairs"
at = 2
state = "1Ki"
lanes = 4
[[tasks]]
name = "longer"
data = "recall:mqar,vocabulary=40,length=32,pairs=4"
chart = "Pairs"
at = 4
of = "two"
[[tasks]]
name = "next"
data = "recall:mqar,vocabulary=40,length=32,pairs=4"
chart = "Pairs"
at = 5
state = "1Ki"
from = "two"
)";
  write("study.toml", study);
  const ProgramResult ran = run({"compare", "study.toml", "--out", "out"});
  ASSERT_EQ(ran.status, 0) << ran.err;
  EXPECT_TRUE(has(ran.out, "| right answers, %, by pairs | 2 | 4 | 5 |")) << ran.out;
  EXPECT_TRUE(has(ran.err, "begins from")) << ran.err;
  const json report = json::parse(read("out/report.json"));
  ASSERT_EQ(report["rows"].size(), 6u);
  EXPECT_EQ(report["rows"][3]["task"], "longer");
  EXPECT_EQ(report["rows"][3]["name"], "retnet");
  EXPECT_NEAR(report["rows"][3]["state_bytes"].get<double>(), 1024, 103);
  EXPECT_GT(report["rows"][0]["state_bytes"].get<double>(), 0);
  EXPECT_TRUE(exists("out/two/retnet/seed-1/checkpoints/last.safetensors"));
  EXPECT_FALSE(exists("out/longer"));
  EXPECT_TRUE(has(read("out/report.html"), "small tasks"));
  EXPECT_TRUE(has(read("out/pairs.svg"), "<svg"));
  // The same by hand.
  const ProgramResult asked =
      run({"eval", "out/two/retnet/seed-1", "--data", "recall:mqar,vocabulary=40,length=32,pairs=4", "--json"});
  ASSERT_EQ(asked.status, 0) << asked.err;
  EXPECT_EQ(json::parse(asked.out)["accuracy"], report["rows"][3]["accuracy"]);
  expect_refusal(run({"compare", "study.toml", "--out", "out2", "--data", "book.txt"}), 2,
                 {"--data", "study of tasks"});
  expect_refusal(run({"compare", "study.toml", "--out", "out2", "--state-budget", "1Ki"}), 2, {"--state-budget"});
  write("study.toml", study + "[[tasks]]\nname = \"far\"\nchart = \"x\"\ndata = \"recall:mqra\"\n");
  expect_refusal(run({"compare", "study.toml", "--out", "out2"}), 2, {"mqra"});
  expect_refusal(run({"compare", "rope", "--out", "out2"}), 2, {"[--data]"});
  EXPECT_FALSE(exists("out2"));
}

constexpr auto kScaling = R"toml(about = "small layers"
[scaling]
size = "size.toml"
lengths = [128, 64]
reference = "rope"
without = "nothing"
fit_from = 64
seconds = 0
rounds = 1
[[members]]
recipe = "rope"
[[members]]
recipe = "retnet"
[[members]]
name = "nothing"
recipe = "rope"
set = { "layers.0.branches.0.pattern" = "distance(context, any)" }
)toml";

TEST_F(StudyProgram, MeasuresLayersByLength) {
  write("study.toml", kScaling);
  const ProgramResult ran = run({"compare", "study.toml", "--out", "out"});
  ASSERT_EQ(ran.status, 0) << ran.err;
  EXPECT_TRUE(has(ran.out, "| member | time | of the last two lengths | time beyond nothing | memory |")) << ran.out;
  EXPECT_TRUE(has(ran.out, "out/report.html")) << ran.out;
  const json report = json::parse(read("out/report.json"));
  ASSERT_EQ(report["members"].size(), 3u);
  for (const auto& member : report["members"]) {
    ASSERT_EQ(member["points"].size(), 2u);
    EXPECT_EQ(member["points"][0]["length"], 64);
    EXPECT_GT(member["points"][1]["seconds"].get<double>(), 0);
    EXPECT_TRUE(member["time"]["exponent"].is_number());
  }
  EXPECT_FALSE(report["members"][0].contains("cheaper_from"));
  EXPECT_TRUE(report["members"][1]["cheaper_from"]["words"].is_string());
  for (const char* file : {"out/report.html", "out/table.md", "out/time.svg", "out/memory.svg"})
    EXPECT_TRUE(has(read(file), "retnet")) << file;

  // Other lengths by a flag; flags of training have nothing to do.
  const ProgramResult longer = run({"compare", "study.toml", "--out", "out", "--lengths", "64,96,160"});
  ASSERT_EQ(longer.status, 0) << longer.err;
  EXPECT_EQ(json::parse(read("out/report.json"))["members"][1]["points"].size(), 3u);
  const auto refused = [&](const std::vector<std::string>& more, const std::vector<std::string>& parts) {
    std::vector<std::string> all = {"compare", "study.toml", "--out", "out2"};
    all.insert(all.end(), more.begin(), more.end());
    expect_refusal(run(all), 2, parts);
  };
  refused({"--data", "book.txt"}, {"[--data]", "study of scaling"});
  refused({"--seeds", "2"}, {"[--seeds]", "study of scaling"});
  refused({"--tokens", "100"}, {"[--tokens]", "study of scaling"});
  refused({"--set", "let.window=3"}, {"[--set]", "study of scaling"});
  refused({"--lengths", "64"}, {"scaling.fit_from", "at least two"});
  write("study.toml", std::string(kScaling) +
                          "[[members]]\nname = \"x\"\nrecipe = \"rope\"\nset = { "
                          "\"layers.0.branches.0.kind\" = \"atention\" }\n");
  refused({}, {"attention"});
  EXPECT_FALSE(exists("out2"));
}

/// Ctrl-C keeps the lengths that were measured.
TEST_F(StudyProgram, StoppedScalingKeepsWhatWasMeasured) {
  std::string study = kScaling;
  study.replace(study.find("[128, 64]"), 9, "[32, 64, 32768]");
  write("study.toml", study);
  ProgramChild child(folder, {"compare", "study.toml", "--out", "out"});
  for (int i = 0; i < 6000 && !has(read("out/report.json"), "\"length\": 64"); ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  child.send(SIGINT);
  const ProgramResult ran = child.finish();
  EXPECT_EQ(ran.status, 130) << ran.err;
  EXPECT_TRUE(has(ran.err, "stopped at 32768 tokens")) << ran.err;
  const json report = json::parse(read("out/report.json"));
  EXPECT_EQ(report["members"][0]["points"].size(), 2u);
  EXPECT_TRUE(has(ran.out, "| rope |")) << ran.out;
}

}  // namespace
}  // namespace kinfolk
