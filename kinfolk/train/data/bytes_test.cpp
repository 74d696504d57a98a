#include "kinfolk/train/data/bytes.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include "kinfolk/core/errors.h"

namespace kinfolk {
namespace {

namespace fs = std::filesystem;

class Bytes : public testing::Test {
 protected:
  void SetUp() override {
    root_ = fs::temp_directory_path() / ("kinfolk_bytes_" + std::to_string(getpid()));
    fs::remove_all(root_);
    fs::create_directories(root_);
  }
  void TearDown() override { fs::remove_all(root_); }
  std::string put(const std::string& name, const std::string& bytes) {
    const fs::path path = root_ / name;
    fs::create_directories(path.parent_path());
    std::ofstream(path, std::ios::binary) << bytes;
    return path.string();
  }
  std::string refusal(const std::string& path, const ReadLimits& limits = {}) {
    try {
      read_corpus(path, "", limits);
    } catch (const UsageError& error) {
      const std::string said = error.what();
      EXPECT_EQ(said.find('\n'), std::string::npos) << said;
      EXPECT_NE(said.find("[data] " + path), std::string::npos) << said;
      EXPECT_NE(said.find("expected "), std::string::npos) << said;
      return said;
    }
    ADD_FAILURE() << path << " was accepted";
    return "";
  }
  fs::path root_;
};

std::string as_string(const Text& text) { return std::string(text.bytes.begin(), text.bytes.end()); }

TEST_F(Bytes, OneFileKeepsItsBytesAndItsLastTwentiethValidates) {
  std::string all;
  for (int i = 0; i < 1000; ++i) all += static_cast<char>(i * 7 + i / 256);  // every byte value, zero included
  const Corpus corpus = read_corpus(put("a.bin", all));
  EXPECT_EQ(as_string(corpus.train), all.substr(0, 950));
  EXPECT_EQ(as_string(corpus.valid), all.substr(950));
  EXPECT_NE(corpus.split.find("5 %"), std::string::npos) << corpus.split;
}

TEST_F(Bytes, InvalidUtf8IsText) {
  const std::string odd =
      "\xE6\xAD"
      "\xC0\x80"
      "\xFF"
      "\x80" +
      std::string(60, '\xFE');
  EXPECT_EQ(as_string(read_text(put("odd", odd))), odd);
}

TEST_F(Bytes, FolderIsSortedRecursiveAndSkipsHidden) {
  put("b.txt", "bb");
  put("a/z.txt", "az");
  put("a/empty.txt", "");
  put("c.txt", "c");
  put(".hidden", "no");
  put(".git/x", "no");
  const Text text = read_text(root_.string());
  EXPECT_EQ(as_string(text), "azbbc");
  ASSERT_EQ(text.documents.size(), 3u);
  EXPECT_EQ(text.documents[1].begin, 2);
  EXPECT_EQ(text.documents[1].end, 4);
  EXPECT_EQ(text.document(2).size(), 1u);
}

TEST_F(Bytes, LinksThatLoopEnd) {
  put("a/x.txt", "x");
  fs::create_directory_symlink(root_, root_ / "a" / "up");
  fs::create_directory_symlink(root_ / "a", root_ / "again");
  fs::create_symlink(root_ / "a" / "x.txt", root_ / "y.txt");
  EXPECT_EQ(as_string(read_text(root_.string())), "xx");  // x.txt by one of its two ways, and the link to the file
  fs::create_symlink(root_ / "nothing", root_ / "dangling");
  EXPECT_NE(refusal((root_ / "dangling").string()).find("No such file"), std::string::npos);
}

TEST_F(Bytes, WholeDocumentsValidate) {
  put("1", std::string(400, 'a'));
  put("2", std::string(500, 'b'));
  put("3", std::string(20, 'c'));
  put("4", std::string(80, 'd'));
  const Corpus tail = read_corpus(root_.string());
  EXPECT_EQ(as_string(tail.valid), std::string(80, 'd'));
  EXPECT_EQ(tail.train.size(), 920);
  put("5", std::string(3000, 'e'));  // as the last it would take 75 %: the one nearest to 10 % of 4000 is "1"
  const Corpus nearest = read_corpus(root_.string());
  EXPECT_EQ(as_string(nearest.valid), std::string(400, 'a'));
  EXPECT_EQ(nearest.train.documents.front().begin, 0);
  EXPECT_EQ(nearest.train.documents.back().end, nearest.train.size());
  EXPECT_EQ(as_string(nearest.train).back(), 'e');
  const Corpus named = read_corpus((root_ / "5").string(), (root_ / "2").string());
  EXPECT_EQ(named.train.size(), 3000);
  EXPECT_EQ(as_string(named.valid), std::string(500, 'b'));
}

TEST_F(Bytes, RefusesWithOneLine) {
  EXPECT_NE(refusal((root_ / "none").string()).find("No such file"), std::string::npos);
  EXPECT_NE(refusal(put("empty", "")).find("found an empty file"), std::string::npos);
  EXPECT_NE(refusal(put("tiny", "abc")).find("found 3 bytes"), std::string::npos);
  EXPECT_NE(refusal(put("large", std::string(5000, 'x')), {1, 4096}).find("at most 4096 bytes"), std::string::npos);
  EXPECT_NE(refusal("/dev/null").find("a device"), std::string::npos);
  fs::create_directory(root_ / "bare");
  EXPECT_NE(refusal((root_ / "bare").string()).find("no files"), std::string::npos);
  const std::string huge = put("huge", "x");
  ASSERT_EQ(truncate(huge.c_str(), int64_t{1} << 41), 0);  // a hole of 2 TiB
  EXPECT_NE(refusal(huge).find("a quarter of this machine's memory"), std::string::npos);
  const std::string closed = put("closed", std::string(100, 'x'));
  chmod(closed.c_str(), 0);
  if (geteuid() != 0) EXPECT_NE(refusal(closed).find("Permission denied"), std::string::npos);
}

TEST_F(Bytes, FingerprintSeesBytesAndBorders) {
  put("a", "one");
  put("b", "two");
  const uint64_t before = read_text(root_.string()).fingerprint();
  EXPECT_EQ(before, read_text(root_.string()).fingerprint());
  put("a", "onet");
  put("b", "wo");
  EXPECT_NE(before, read_text(root_.string()).fingerprint());
}

}  // namespace
}  // namespace kinfolk
