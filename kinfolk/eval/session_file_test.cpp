// Sessions on disk: what was cut or changed, and what belongs to something else.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "kinfolk/core/errors.h"
#include "kinfolk/core/safetensors.h"
#include "kinfolk/eval/session.h"
#include "kinfolk/nn/testing.h"

namespace kinfolk {
namespace {

class SessionFile : public ::testing::Test {
 protected:
  SessionFile()
      : path_((std::filesystem::path(::testing::TempDir()) / text("kinfolk_session_file_", getpid())).string()) {
    model_ = tiny("rope");
    model_->eval();
    Session session(*model_, {.lanes = 2});
    session.feed(at::randint(29, {2, 12}, at::detail::createCPUGenerator(1), at::kLong));
    session.save(path_);
    std::ifstream in(path_, std::ios::binary);
    bytes_.assign(std::istreambuf_iterator<char>(in), {});
  }
  ~SessionFile() override { std::filesystem::remove(path_); }

  /// What a file of these bytes is refused with.
  std::string refusal(const std::string& bytes) const {
    std::ofstream(path_, std::ios::binary | std::ios::trunc) << bytes;
    try {
      Session::load(*model_, path_);
    } catch (const Error& error) {
      return error.what();
    }
    return "no error";
  }
  size_t data() const {  // where the tensors begin
    uint64_t header = 0;
    std::memcpy(&header, bytes_.data(), sizeof header);
    return sizeof header + header;
  }

  std::string path_, bytes_;
  std::shared_ptr<Model> model_;
};

TEST_F(SessionFile, AChangedByteIsRefusedWhereverItIs) {
  ASSERT_EQ(refusal(bytes_), "no error");
  for (size_t at = data(); at < bytes_.size(); at += 37) {
    std::string changed = bytes_;
    changed[at] = static_cast<char>(changed[at] ^ 1);
    const std::string what = refusal(changed);
    EXPECT_EQ(what.rfind("[session] " + path_ + ": expected ", 0), 0U) << at << ": " << what;
  }
  std::string changed = bytes_;
  changed[bytes_.size() - 1] = static_cast<char>(changed[bytes_.size() - 1] ^ 1);
  EXPECT_NE(refusal(changed).find("checksum"), std::string::npos);
  const size_t place = bytes_.find("\"position\":\"12 12\"");
  ASSERT_NE(place, std::string::npos);
  changed = bytes_;
  changed[place + 12] = '7';
  EXPECT_NE(refusal(changed).find("checksum"), std::string::npos);
}

TEST_F(SessionFile, ACutFileIsSaidToBeOfASession) {
  for (const size_t length : {size_t{0}, size_t{5}, data() / 2, data(), bytes_.size() - 1}) {
    const std::string what = refusal(bytes_.substr(0, length));
    EXPECT_EQ(what.rfind("[session] " + path_ + ": expected ", 0), 0U) << what;
    EXPECT_NE(what.find("; found "), std::string::npos) << what;
  }
  std::filesystem::remove(path_);
  try {
    Session::load(*model_, path_);
    ADD_FAILURE() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(std::string(error.what()).rfind("[session] ", 0), 0U) << error.what();
  }
}

TEST_F(SessionFile, AFormatOfAnotherVersionIsRefused) {
  TensorFile file = read_tensors(path_);
  file.metadata["format"] = "kinfolk-session-1";
  write_tensors(path_, file);
  try {
    Session::load(*model_, path_);
    ADD_FAILURE() << "no error";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("kinfolk-session-1, of another version"), std::string::npos)
        << error.what();
  }
}

TEST_F(SessionFile, TheNewestTokensAreInIt) {
  const Tensor tokens = at::randint(29, {1, 1500}, at::detail::createCPUGenerator(2), at::kLong);
  const std::vector<int64_t> all(tokens.const_data_ptr<int64_t>(), tokens.const_data_ptr<int64_t>() + 1500);
  const auto model = tiny("lstm");
  Session session(*model), asked(*model);
  asked.keep_recent(1400);
  for (Session* one : {&session, &asked}) {
    one->feed(tokens);
    one->save(path_);
    const int64_t kept = one == &asked ? 1400 : 1024;
    Session loaded = Session::load(*model, path_);
    EXPECT_EQ(loaded.recent(), std::vector<int64_t>(all.end() - kept, all.end()));
    loaded.keep_recent(kept);
    EXPECT_THROW(loaded.keep_recent(kept + 1), UsageError);
    loaded.reset();
    loaded.keep_recent(2000);  // nothing was read: all of it is known
  }
}

}  // namespace
}  // namespace kinfolk
