// A run from its first step to the text it writes; stopped by a person, by another, and gone on with.
#include <nlohmann/json.hpp>

#include "tests/cli/program.h"

namespace kinfolk {
namespace {

using nlohmann::json;

class Runs : public ProgramTest {
 protected:
  std::string weights(const std::string& name) const { return read(name + "/checkpoints/best.safetensors"); }
  json result(const std::string& name) const { return json::parse(read(name + "/result.json")); }
};

TEST_F(Runs, TrainResumeEvaluateGenerate) {
  for (const std::string member : {"rope", "transformer_xl", "deltanet"}) {
    SCOPED_TRACE(member);
    const std::string whole = member + "/whole", parts = member + "/parts";
    const ProgramResult first = train(member, whole);
    ASSERT_EQ(first.status, 0) << first.err;
    EXPECT_TRUE(has(first.out, member + ": ")) << first.out;
    EXPECT_TRUE(has(first.out, "bits per byte held out")) << first.out;
    EXPECT_TRUE(has(first.out, (folder / whole).string())) << first.out;
    EXPECT_TRUE(has(first.err, "step 20")) << first.err;
    for (const char* file : {"log.jsonl", "recipe.toml", "size.toml", "settings.toml", "result.json"})
      EXPECT_TRUE(exists(whole + "/" + file)) << file;

    const ProgramResult half = train(member, parts, {"--tokens", "1280", "--schedule", "constant"});
    ASSERT_EQ(half.status, 0) << half.err;
    const ProgramResult rest = train(member, parts, {"--resume", "auto", "--schedule", "constant"});
    ASSERT_EQ(rest.status, 0) << rest.err;
    EXPECT_TRUE(has(rest.err, "resumed at step 10, 1280 tokens")) << rest.err;
    EXPECT_EQ(result(parts)["tokens"], 2560);

    const ProgramResult scored = run({"eval", whole, "--data", "book.txt", "--lengths", "32,128", "--json"});
    ASSERT_EQ(scored.status, 0) << scored.err;
    const json scores = json::parse(scored.out);
    ASSERT_EQ(scores["lengths"].size(), 2u);
    for (const auto& row : scores["lengths"]) {
      EXPECT_GT(row["bits_per_byte"].get<double>(), 0.5);
      EXPECT_LT(row["bits_per_byte"].get<double>(), 8.0);
      EXPECT_EQ(row["mode"], "stream");
    }
    const ProgramResult written = run({"generate", whole, "--prompt", "the cat ", "-n", "30"});
    EXPECT_EQ(written.status, 0) << written.err;
    EXPECT_EQ(written.out.size(), 31u);
    EXPECT_TRUE(has(written.err, "ended: tokens; prompt of 8 bytes")) << written.err;
    if (member != "rope") continue;
    const ProgramResult table = run({"eval", whole, "--data", "book.txt"});  // 1, 2, 4, 8 times the trained length
    EXPECT_EQ(table.status, 0) << table.err;
    for (const char* length : {"\n       32 ", "\n       64 ", "\n      128 ", "\n      256 "})
      EXPECT_TRUE(has(table.out, length)) << table.out;

    EXPECT_EQ(run({"generate", whole, "--prompt", "the cat ", "-n", "30"}).out, written.out);
    EXPECT_NE(run({"generate", whole, "--prompt", "the cat ", "-n", "30", "--seed", "2"}).out, written.out);
  }
}

TEST_F(Runs, BitsOfHiddenBytesAreCalledSo) {
  const ProgramResult ran = train("linformer", "hidden");
  ASSERT_EQ(ran.status, 0) << ran.err;
  EXPECT_TRUE(has(ran.out, " bits per hidden byte held out")) << ran.out;
  EXPECT_TRUE(has(ran.err, " bits/hidden byte over ")) << ran.err;
  EXPECT_TRUE(has(ran.err, " hidden bytes")) << ran.err;
  EXPECT_FALSE(has(ran.err, "bits/byte")) << ran.err;
  for (const auto& asked :
       {run({"eval", "hidden", "--data", "book.txt"}),
        run({"compare", "linformer", "rope", "--data", "book.txt", "--tokens", "2k", "--out", "c"})}) {
    EXPECT_NE(asked.status, 0) << asked.out;
    EXPECT_TRUE(has(asked.err, "fills in hidden tokens")) << asked.err;
    EXPECT_FALSE(has(asked.out, "bits/byte")) << asked.out;
    EXPECT_FALSE(has(asked.err, "step 0")) << asked.err;  // before anything is trained
  }
}

TEST_F(Runs, OneBlockStreamsToTheSameBits) {
  ASSERT_EQ(train("rope", "run").status, 0);
  const auto bits = [&](const std::string& length, const std::string& mode) {
    const ProgramResult ran = run({"eval", "run", "--data", "book.txt", "--lengths", length, "--mode", mode, "--json"});
    EXPECT_EQ(ran.status, 0) << ran.err;
    return json::parse(ran.out)["lengths"][0]["bits_per_byte"].get<double>();
  };
  EXPECT_NEAR(bits("32", "stream"), bits("32", "blocks"), 1e-6);
  EXPECT_NEAR(bits("20", "stream"), bits("20", "blocks"), 1e-6);
  EXPECT_NE(bits("128", "stream"), bits("128", "blocks"));
  ASSERT_EQ(train("gpt", "gpt").status, 0);
  expect_refusal(run({"eval", "gpt", "--data", "book.txt", "--mode", "stream"}), 2,
                 {"[eval.mode]", "positions end at 32"});
}

TEST_F(Runs, FinishedRunStaysAsItIs) {
  ASSERT_EQ(train("rope", "run").status, 0);
  const std::string before = read("run/checkpoints/last.safetensors");
  const ProgramResult again = train("rope", "run", {"--resume", "auto"});
  EXPECT_EQ(again.status, 0) << again.err;
  EXPECT_TRUE(has(again.err, "resumed at step 20")) << again.err;
  EXPECT_EQ(read("run/checkpoints/last.safetensors"), before);
}

TEST_F(Runs, KilledAndGoneOnWith) {
  const std::vector<std::string> more = {"--tokens", "400k", "--save-every", "5", "--eval-every", "0"};
  {
    ProgramChild child(folder, training("deltanet", "run", more));
    ASSERT_TRUE(child.wait_for(".err", "step 20 "));
    child.send(SIGKILL);
    EXPECT_EQ(child.finish().status, 137);
  }
  ASSERT_TRUE(exists("run/checkpoints/last.safetensors"));
  EXPECT_EQ(run({"eval", "run", "--data", "book.txt", "--lengths", "32"}).status, 0);
  // As if the end of the last row had not reached the disk.
  write("run/log.jsonl", read("run/log.jsonl") + "{\"event\":\"train\",\"st");
  std::vector<std::string> again = more;
  again[1] = "6k";
  again.insert(again.end(), {"--resume", "auto"});
  const ProgramResult ran = train("deltanet", "run", again);
  EXPECT_EQ(ran.status, 0) << ran.err;
  EXPECT_TRUE(has(ran.err, "resumed at step ")) << ran.err;
  int64_t last = -1;
  std::istringstream log(read("run/log.jsonl"));
  for (std::string line; std::getline(log, line);) {
    const json row = json::parse(line);
    EXPECT_GE(row["step"].get<int64_t>(), last);
    last = row["step"];
  }
}

TEST_F(Runs, FirstInterruptSavesAndEnds) {
  for (const int signal : {SIGINT, SIGTERM}) {
    const std::string name = "run" + std::to_string(signal);
    ProgramChild child(folder, training("rope", name, {"--tokens", "10M"}));
    ASSERT_TRUE(child.wait_for(".err", "step 10 "));
    child.send(signal);
    const ProgramResult ran = child.finish();
    EXPECT_EQ(ran.status, 128 + signal) << ran.err;
    EXPECT_TRUE(has(ran.err, "stopped and saved")) << ran.err;
    EXPECT_TRUE(exists(name + "/checkpoints/last.safetensors"));
    EXPECT_EQ(result(name)["finished"], false);
  }
}

TEST_F(Runs, SecondInterruptEndsAtOnce) {
  ProgramChild child(folder, training("rope", "run", {"--tokens", "10M", "--eval-tokens", "10M"}));
  ASSERT_TRUE(child.wait_for(".err", "step 10 "));
  for (int i = 0; i < 2; ++i) {  // signals that are pending at once are one
    child.send(SIGINT);
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  EXPECT_EQ(child.finish().status, 130);
}

}  // namespace
}  // namespace kinfolk
