#include "kinfolk/core/file_writer.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "kinfolk/core/errors.h"

namespace kinfolk {
namespace {

struct FileWriterTest : testing::Test {
  std::filesystem::path folder = std::filesystem::temp_directory_path() / text("kinfolk_writer_", getpid());
  std::string path = (folder / "file").string();
  void SetUp() override { std::filesystem::create_directories(folder); }
  void TearDown() override { std::filesystem::remove_all(folder); }
  std::string content() const {
    std::ifstream in(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(in), {}};
  }
  int64_t files() const {
    return std::distance(std::filesystem::directory_iterator(folder), std::filesystem::directory_iterator());
  }
};

struct FileSizeLimit {
  rlimit before;
  explicit FileSizeLimit(rlim_t bytes) {
    getrlimit(RLIMIT_FSIZE, &before);
    rlimit now = before;
    now.rlim_cur = bytes;
    setrlimit(RLIMIT_FSIZE, &now);
  }
  ~FileSizeLimit() { setrlimit(RLIMIT_FSIZE, &before); }
};

TEST_F(FileWriterTest, ReplacesTheOldFileOnCommitOnly) {
  write_file(path, "old");
  {
    FileWriter file(path);
    file.write("new ");
    file.write(std::string_view("\0bytes", 6));
    EXPECT_EQ(content(), "old");
    file.commit();
  }
  EXPECT_EQ(content(), std::string("new \0bytes", 10));
  EXPECT_EQ(files(), 1);
}

TEST_F(FileWriterTest, LeavesNothingWithoutCommit) {
  write_file(path, "old");
  { FileWriter(path).write("half"); }
  EXPECT_EQ(content(), "old");
  EXPECT_EQ(files(), 1);
}

TEST_F(FileWriterTest, FileSizeLimitIsAnErrorAndKeepsTheOldFile) {
  write_file(path, "old");
  std::string message;
  {
    FileSizeLimit limit(4096);
    try {
      write_file(path, std::string(10000, 'x'));
    } catch (const Error& error) {
      message = error.what();
    }
  }
  EXPECT_NE(message.find("File too large"), std::string::npos) << message;
  EXPECT_EQ(content(), "old");
  EXPECT_EQ(files(), 1);
}

TEST_F(FileWriterTest, FullDiskIsAnError) {
  std::FILE* full = std::fopen("/dev/full", "w");
  if (full == nullptr) GTEST_SKIP() << "no /dev/full here";
  EXPECT_EQ(write_fully(fileno(full), "x", 1), ENOSPC);
  std::fclose(full);
}

TEST_F(FileWriterTest, MissingFolderAndDirectoryAsTargetAreErrors) {
  EXPECT_THROW(write_file((folder / "absent" / "file").string(), "x"), Error);
  std::filesystem::create_directories(folder / "directory" / "inside");
  EXPECT_THROW(write_file((folder / "directory").string(), "x"), Error);
  EXPECT_EQ(files(), 1);
}

}  // namespace
}  // namespace kinfolk
