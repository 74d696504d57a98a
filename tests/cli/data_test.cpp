// Data of every kind: what cannot be learned from is refused in one line; any bytes that can, are (A52).
#include "tests/cli/program.h"

namespace kinfolk {
namespace {

class DataOf : public ProgramTest {
 protected:
  ProgramResult train_on(const std::string& data) const {
    return run({"train", "rope", "--data", data, "--size", "size.toml", "--out", "run"});
  }
};

TEST_F(DataOf, NothingToLearnFrom) {
  write("empty", "");
  write("one", "x");
  write("short", std::string(100, 'a'));
  write("emptyonly/a", "");
  std::filesystem::create_directories(folder / "nofiles");
  std::filesystem::create_symlink("nowhere", folder / "dangling");
  expect_refusal(train_on("nowhere"), 2, {"nowhere", "No such file"});
  expect_refusal(train_on("empty"), 2, {"empty", "an empty file"});
  expect_refusal(train_on("one"), 2, {"1 byte"});
  expect_refusal(train_on("short"), 2, {"4 lanes x 32 tokens", "95"});
  expect_refusal(train_on("nofiles"), 2, {"nofiles", "no files"});
  expect_refusal(train_on("emptyonly"), 2, {"only empty files"});
  expect_refusal(train_on("dangling"), 2, {"dangling"});
  expect_refusal(train_on("/dev/null"), 2, {"/dev/null", "a device"});
  expect_refusal(train_on(""), 2, {"empty path"});
  if (geteuid() != 0) {
    write("locked", std::string(1000, 'a'));
    std::filesystem::permissions(folder / "locked", std::filesystem::perms::none);
    expect_refusal(train_on("locked"), 2, {"Permission denied"});
  }
  EXPECT_FALSE(exists("run"));
}

TEST_F(DataOf, MoreThanTheMemoryHolds) {
  write("huge", "x");
  std::filesystem::resize_file(folder / "huge", uint64_t{1} << 42);  // a hole: no disk is used
  expect_refusal(train_on("huge"), 2, {"huge", "a quarter of this machine's memory"});
}

TEST_F(DataOf, AnyBytes) {
  std::string bytes;
  for (uint32_t i = 0, state = 7; i < 5000; ++i)
    bytes += static_cast<char>((state = state * 1664525u + 1013904223u) >> 24);
  write("binary", bytes);
  EXPECT_EQ(train_on("binary").status, 0);
  const ProgramResult scored = run({"eval", "run", "--data", "binary", "--whole", "--lengths", "32", "--json"});
  EXPECT_EQ(scored.status, 0) << scored.err;
  EXPECT_TRUE(has(scored.out, "\"bits_per_byte\"")) << scored.out;
}

TEST_F(DataOf, EvaluationOfTooLittle) {
  ASSERT_EQ(train("rope", "run").status, 0);
  write("empty", "");
  write("one", "x");
  expect_refusal(run({"eval", "run", "--data", "empty"}), 2, {"an empty file"});
  expect_refusal(run({"eval", "run", "--data", "one", "--whole"}), 1, {"window", "1"});
  expect_refusal(run({"eval", "run", "--data", "book.txt", "--lengths", "0"}), 2, {"[--lengths]", "at least 1", "0"});
  expect_refusal(run({"eval", "run", "--data", "book.txt", "--lengths", "32,99999"}), 1, {"99999"});
  expect_refusal(run({"eval", "run", "--data", "book.txt", "--lengths", "32,,64"}), 2, {"[--lengths]"});
  expect_refusal(run({"eval", "run", "--data", "book.txt", "--tokens", "0"}), 2, {"[--tokens]"});
  expect_refusal(run({"eval", "run", "--data", "book.txt", "--chunk", "0"}), 2, {"[--chunk]"});
  expect_refusal(run({"eval", "run", "--data", "book.txt", "--mode", "steram"}), 2, {"[--mode]", "stream", "steram"});
  expect_refusal(run({"eval", "run", "--data", "book.txt", "--store", "book.txt"}), 2, {"[--store]", "datastore"});
}

}  // namespace
}  // namespace kinfolk
