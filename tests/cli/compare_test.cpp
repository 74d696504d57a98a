// A comparison: its report, what it refuses, and going on where it stopped.
#include <nlohmann/json.hpp>

#include "tests/cli/program.h"

namespace kinfolk {
namespace {

using nlohmann::json;

class Comparison : public ProgramTest {
 protected:
  static std::vector<std::string> words(const std::vector<std::string>& recipes, const std::vector<std::string>& more) {
    std::vector<std::string> out = {"compare"};
    out.insert(out.end(), recipes.begin(), recipes.end());
    for (const char* word : {"--data", "book.txt", "--size", "size.toml", "--score-tokens", "512"}) out.push_back(word);
    out.insert(out.end(), more.begin(), more.end());
    return out;
  }
};

TEST_F(Comparison, TwoMembersTwoSeeds) {
  const auto call = words({"lstm", "rope"}, {"--out", "cmp", "--seeds", "2"});
  const ProgramResult ran = run(call);
  ASSERT_EQ(ran.status, 0) << ran.err;
  for (const char* part : {"rope", "lstm", "order-1 bytes", "order-3 bytes", "bits per byte", "cmp/report.html"})
    EXPECT_TRUE(has(ran.out, part)) << part << ran.out;

  const json report = json::parse(read("cmp/report.json"));
  ASSERT_EQ(report["members"].size(), 2u);
  EXPECT_EQ(report["trained_length"], 32);
  EXPECT_EQ(report["baselines"].size(), 3u);
  for (const auto& member : report["members"]) {
    EXPECT_EQ(member["tokens"], 2560) << member;
    EXPECT_EQ(member["validation"]["bits_per_byte"].size(), 2u);
    EXPECT_TRUE(member["validation"]["spread"].is_number());
    EXPECT_EQ(member["curves"].size(), 2u);
    EXPECT_EQ(member["curves"][0].size(), 4u) << "the rows of the training log";
  }
  const double a = report["members"][0]["parameters"], b = report["members"][1]["parameters"];
  EXPECT_NEAR(a / b, 1, 0.01);
  const std::string page = read("cmp/report.html");
  for (const char* part : {"<svg", "rope", "lstm", "kinfolk compare lstm rope", "order-2 bytes"})
    EXPECT_TRUE(has(page, part)) << part;
  EXPECT_FALSE(has(page, "http://") && !has(page, "http://www.w3.org")) << "a page that asks the network";

  // The same command again trains nothing and says the same.
  const std::string before = read("cmp/rope/seed-1/checkpoints/last.safetensors");
  const ProgramResult again = run(call);
  EXPECT_EQ(again.status, 0);
  EXPECT_EQ(again.out, ran.out);
  EXPECT_EQ(read("cmp/rope/seed-1/checkpoints/last.safetensors"), before);
  // Other lengths are measured anew; another budget needs another folder.
  const ProgramResult other = run(words({"lstm", "rope"}, {"--out", "cmp", "--seeds", "2", "--lengths", "64,16,64"}));
  EXPECT_EQ(other.status, 0);
  EXPECT_TRUE(has(other.out, "        16        64\n")) << other.out;
  expect_refusal(run(words({"lstm", "rope"}, {"--out", "cmp", "--tokens", "4k"})), 2, {"tokens = 4000", "2560 before"});
}

TEST_F(Comparison, GoesOnWhereItStopped) {
  const auto call = words({"rope", "deltanet"}, {"--out", "cmp", "--tokens", "25600", "--save-every", "10"});
  {
    ProgramChild child(folder, call);
    ASSERT_TRUE(child.wait_for(".err", "deltanet: ") &&
                child.wait_for("cmp/deltanet/seed-1/log.jsonl", "\"step\":20,"));
    child.send(SIGINT);
    const ProgramResult ran = child.finish();
    EXPECT_EQ(ran.status, 130) << ran.err;
    EXPECT_TRUE(has(ran.err, "the same command goes on from here")) << ran.err;
    EXPECT_EQ(json::parse(read("cmp/report.json"))["members"].size(), 1u);
  }
  const auto rope = std::filesystem::last_write_time(folder / "cmp/rope/seed-1/checkpoints/last.safetensors");
  const ProgramResult rest = run(call);
  EXPECT_EQ(rest.status, 0) << rest.err;
  EXPECT_EQ(std::filesystem::last_write_time(folder / "cmp/rope/seed-1/checkpoints/last.safetensors"), rope);
  EXPECT_EQ(json::parse(read("cmp/report.json"))["members"].size(), 2u);
  // Bit for bit what a comparison that was never stopped finds.
  auto whole = call;
  whole[std::find(whole.begin(), whole.end(), "cmp") - whole.begin()] = "whole";
  ASSERT_EQ(run(whole).status, 0);
  const auto bits = [&](const std::string& name) {
    return json::parse(read(name + "/report.json"))["members"][1]["validation"]["bits_per_byte"];
  };
  EXPECT_EQ(bits("cmp"), bits("whole"));
}

TEST_F(Comparison, RefusesBeforeAnythingIsTrained) {
  write("file", "x");
  const std::vector<std::pair<std::vector<std::string>, std::vector<std::string>>> cases = {
      {words({"rope", "rope"}, {"--out", "cmp"}), {"once", "rope twice"}},
      {words({"rope", "lstn"}, {"--out", "cmp"}), {"did you mean lstm?"}},
      {words({"rope"}, {"--out", "cmp", "--seeds", "0"}), {"[--seeds]", "at least 1"}},
      {words({"rope"}, {"--out", "cmp", "--seeds", "1.5"}), {"[--seeds]", "1.5"}},
      {words({"rope"}, {"--out", "cmp", "--lengths", "0"}), {"[--lengths]"}},
      {words({"rope", "gpt"}, {"--out", "cmp", "--length", "64"}), {"at most 32", "gpt", "64"}},
      {words({"rope"}, {"--out", "file"}), {"file", "a folder"}},
      {words({"rope"}, {"--out", ""}), {"[--out]", "empty path"}}};
  for (const auto& [call, parts] : cases) {
    SCOPED_TRACE(parts[0]);
    expect_refusal(run(call), 2, parts);
  }
  expect_refusal(run(words({"rope"}, {"--out", "cmp", "--lengths", "99999"})), 1, {"held-out", "99999"});
  expect_refusal(run(words({"rope", "lstm"}, {"--out", "cmp", "--budget", "100"})), 1, {"[budget]", "100"});
  EXPECT_FALSE(exists("cmp"));
}

TEST_F(Comparison, OneMembersFailureLeavesTheOthers) {
  write("cmp/window", "a file where its run would lie");
  const ProgramResult ran = run(words({"window", "gpt"}, {"--out", "cmp"}));
  EXPECT_EQ(ran.status, 1) << ran.err;
  EXPECT_TRUE(has(ran.err, "window failed")) << ran.err;
  EXPECT_TRUE(has(ran.out, "gpt")) << ran.out;
  const json report = json::parse(read("cmp/report.json"));
  EXPECT_EQ(report["members"].size(), 1u);
  EXPECT_TRUE(has(report.dump(), "window failed and is left out"));
}

}  // namespace
}  // namespace kinfolk
