// Runs and checkpoints that are not: truncated, foreign, missing; and one that cannot be saved.
#include <nlohmann/json.hpp>

#include "tests/cli/program.h"

namespace kinfolk {
namespace {

class Checkpoints : public ProgramTest {
 protected:
  void refuse(const std::string& run_name, int status, const std::vector<std::string>& parts) const {
    SCOPED_TRACE(run_name);
    expect_refusal(run({"generate", run_name, "-n", "1"}), status, parts);
  }
  static std::string safetensors(const nlohmann::json& metadata) {
    nlohmann::json header = {{"a", {{"dtype", "F32"}, {"shape", {2}}, {"data_offsets", {0, 8}}}}};
    if (!metadata.is_null()) header["__metadata__"] = metadata;
    const std::string text = header.dump();
    std::string out(8, '\0');
    for (size_t i = 0; i < 8; ++i) out[i] = static_cast<char>(text.size() >> (8 * i) & 255);
    return out + text + std::string(8, '\0');
  }
};

TEST_F(Checkpoints, Foreign) {
  write("text", "It was a bright cold day in April.");
  write("empty", "");
  write("foreign", safetensors(nullptr));
  write("pt", safetensors({{"format", "pt"}}));
  write("later", safetensors({{"format", "kinfolk-99"}}));
  write("bare", safetensors({{"format", "kinfolk-1"}}));
  std::filesystem::create_directories(folder / "folder");
  expect_refusal(run({"eval", "foreign", "--data", "book.txt"}), 1, {"another program"});
  refuse("nowhere", 1, {"nowhere", "a run folder or a checkpoint file", "nothing there"});
  refuse("text", 1, {"text", "another kind"});
  refuse("empty", 1, {"empty", "0 bytes"});
  refuse("folder", 1, {"folder", "checkpoints/last.safetensors"});
  refuse("foreign", 1, {"another program"});
  refuse("pt", 1, {"format pt"});
  refuse("later", 1, {"kinfolk-99", "another version"});
  refuse("bare", 1, {"metadata"});
}

TEST_F(Checkpoints, TruncatedAndChanged) {
  ASSERT_EQ(train("rope", "run").status, 0);
  const std::string whole = read("run/checkpoints/last.safetensors");
  for (const size_t length : {size_t{8}, size_t{100}, whole.size() - 1}) {
    write("cut", whole.substr(0, length));
    refuse("cut", 1, {"cut"});
  }
  write("longer", whole + "x");
  refuse("longer", 1, {"longer", "bytes"});
  expect_refusal(run({"eval", "run", "--data", "book.txt", "--checkpoint", "lst"}), 2, {"did you mean last?", "best"});
  EXPECT_EQ(run({"eval", "run", "--data", "book.txt", "--checkpoint", "best"}).status, 0);
  EXPECT_EQ(run({"eval", "run/checkpoints/last.safetensors", "--data", "book.txt"}).status, 0);
  // A run whose last checkpoint was cut does not begin anew in silence.
  write("run/checkpoints/last.safetensors", whole.substr(0, whole.size() / 2));
  const ProgramResult ran = train("rope", "run", {"--resume", "auto", "--tokens", "4k"});
  expect_refusal(ran, 1, {"last.safetensors"});
}

TEST_F(Checkpoints, AFullDiskLosesNothing) {
  ASSERT_EQ(train("rope", "run").status, 0);
  const std::string before = read("run/checkpoints/last.safetensors");
  const ProgramResult ran = run(training("rope", "run", {"--resume", "auto", "--tokens", "20k"}), "", [] {
    const rlimit limit = {20480, 20480};
    setrlimit(RLIMIT_FSIZE, &limit);
  });
  EXPECT_EQ(ran.status, 1) << ran.err;
  EXPECT_TRUE(has(ran.err, "room to write it")) << ran.err;
  EXPECT_EQ(read("run/checkpoints/last.safetensors"), before);
  for (const auto& entry : std::filesystem::directory_iterator(folder / "run/checkpoints"))
    EXPECT_NE(entry.path().extension(), ".tmp") << entry.path();
  const ProgramResult again = train("rope", "run", {"--resume", "auto", "--tokens", "20k"});
  EXPECT_EQ(again.status, 0) << again.err;
  EXPECT_TRUE(has(again.err, "resumed at step 20")) << again.err;
}

TEST_F(Checkpoints, PlacesThatCannotBeWritten) {
  write("file", "x");
  expect_refusal(train("rope", "file"), 2, {"file", "a folder"});
  expect_refusal(train("rope", "file/run"), 1, {"Not a directory"});
  expect_refusal(train("rope", ""), 2, {"empty path"});
  expect_refusal(train("rope", "/proc/run"), 1, {"/proc/run"});
  expect_refusal(run({"draw", "causal", "--svg", "file/x.svg"}), 1, {"file/x.svg"});
  ASSERT_EQ(train("rope", "run").status, 0);
  const std::string before = read("run/checkpoints/last.safetensors");
  expect_refusal(train("rope", "run"), 2, {"--resume auto", "another run"});
  expect_refusal(train("window", "run", {"--resume", "auto"}), 2, {"expected the member", "before", "now"});
  EXPECT_EQ(read("run/checkpoints/last.safetensors"), before);
}

}  // namespace
}  // namespace kinfolk
