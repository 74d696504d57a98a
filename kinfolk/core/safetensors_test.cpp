#include "kinfolk/core/safetensors.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <random>

#include "kinfolk/core/errors.h"

namespace kinfolk {
namespace {

struct Safetensors : testing::Test {
  std::filesystem::path folder = std::filesystem::temp_directory_path() / text("kinfolk_safetensors_", getpid());
  std::string path = (folder / "file.safetensors").string();
  void SetUp() override { std::filesystem::create_directories(folder); }
  void TearDown() override { std::filesystem::remove_all(folder); }

  std::string bytes() const {
    std::ifstream in(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(in), {}};
  }
  void put(const std::string& content) const { std::ofstream(path, std::ios::binary) << content; }
  void put_header(const std::string& header, size_t data = 0) const {
    const uint64_t length = header.size();
    put(std::string(reinterpret_cast<const char*>(&length), 8) + header + std::string(data, '\1'));
  }
  /// The message of the error that reading gives, or "none".
  std::string fault() const {
    try {
      read_tensors(path);
    } catch (const Error& error) {
      return error.what();
    }
    return "none";
  }
  static TensorFile example() {
    TensorFile file;
    file.metadata = {{"recipe", "about = \"\u00e9\"\n[input]\n"}, {"step", "12"}};
    const auto values = at::arange(-6, 6).reshape({3, 4});
    for (auto type : {at::kDouble, at::kFloat, at::kHalf, at::kBFloat16, at::kLong, at::kInt, at::kShort, at::kChar})
      file.tensors[text("layers.0.", c10::toString(type))] = values.to(type);
    file.tensors["byte"] = at::arange(7).to(at::kByte);
    file.tensors["bool"] = at::arange(5).fmod(2).to(at::kBool);
    file.tensors["scalar"] = at::full({}, 2.5);
    file.tensors["empty"] = at::empty({0, 3});
    file.tensors["transposed"] = at::arange(12.).reshape({3, 4}).t();
    return file;
  }
};

TEST_F(Safetensors, RoundTripOfEveryType) {
  const auto file = example();
  write_tensors(path, file);
  const auto back = read_tensors(path);
  EXPECT_EQ(back.metadata, file.metadata);
  EXPECT_EQ(read_metadata(path), file.metadata);
  ASSERT_EQ(back.tensors.size(), file.tensors.size());
  for (const auto& [name, tensor] : file.tensors) {
    const auto& other = back.tensors.at(name);
    EXPECT_EQ(other.scalar_type(), tensor.scalar_type()) << name;
    EXPECT_TRUE(at::equal(other, tensor)) << name;
    EXPECT_TRUE(other.is_contiguous()) << name;
  }
}

TEST_F(Safetensors, BytesAreDeterministicAndAligned) {
  write_tensors(path, example());
  const auto first = bytes();
  write_tensors(path, read_tensors(path));
  EXPECT_EQ(bytes(), first);
  uint64_t length = 0;
  std::memcpy(&length, first.data(), 8);
  EXPECT_EQ(length % 8, 0u);
}

TEST_F(Safetensors, TensorsOutliveTheFile) {
  write_tensors(path, example());
  auto back = read_tensors(path);
  std::filesystem::remove(path);
  back.tensors.at("transposed").add_(1);
  EXPECT_EQ(back.tensors.at("transposed")[0][1].item<double>(), 5);
}

TEST_F(Safetensors,
       ReadsAForeignFile) {  // as the format's README lays it out, keys in any order, spaces after the header
  put_header(
      R"({"b":{"shape":[2],"dtype":"U8","data_offsets":[2,4]},"a":{"dtype":"I16","shape":[1,1],"data_offsets":[0,2]}}  )",
      4);
  const auto file = read_tensors(path);
  EXPECT_EQ(file.tensors.at("a").item<int64_t>(), 257);
  EXPECT_TRUE(file.metadata.empty());
  put_header("{}");
  EXPECT_TRUE(read_tensors(path).tensors.empty());
}

TEST_F(Safetensors, EveryFaultIsNamed) {
  const auto expect = [&](const std::string& header, size_t data, const std::string& words) {
    put_header(header, data);
    const auto message = fault();
    EXPECT_EQ(message.rfind("[checkpoint] " + path + ": expected ", 0), 0u) << message;
    EXPECT_NE(message.find(words), std::string::npos) << header << "\n" << message;
    EXPECT_EQ(message.find('\n'), std::string::npos) << message;
  };
  const auto tensor = [](const std::string& type, const std::string& shape, const std::string& offsets) {
    return "{\"x\":{\"dtype\":" + type + ",\"shape\":" + shape + ",\"data_offsets\":" + offsets + "}}";
  };
  expect("{", 0, "JSON header");
  expect("[1]", 0, "JSON object");
  expect("{\"x\n\":1}", 0, "JSON header");
  expect("{\"x\":1}", 0, "dtype, shape and data_offsets");
  expect("{\"x\":{\"dtype\":\"F32\",\"shape\":[]}}", 0, "data_offsets");
  expect("{\"__metadata__\":3}", 0, "object of strings");
  expect("{\"__metadata__\":{\"a\":3}}", 0, "a string for metadata \"a\"");
  expect(tensor("\"F31\"", "[1]", "[0,4]"), 4, "\"F31\"");
  expect(tensor("7", "[1]", "[0,4]"), 4, "dtype");
  expect(tensor("\"F32\"", "[-1]", "[0,4]"), 4, "-1");
  expect(tensor("\"F32\"", "[1.0]", "[0,4]"), 4, "1.0");
  expect(tensor("\"F32\"", "{}", "[0,4]"), 4, "a shape");
  expect(tensor("\"F32\"", "[4294967296,4294967296]", "[0,0]"), 0, "bytes can be counted");
  expect(tensor("\"F32\"", "[0,4294967296,4294967296]", "[0,0]"), 0, "bytes can be counted");
  expect(tensor("\"F32\"", "[18446744073709551615]", "[0,4]"), 4, "18446744073709551615");
  expect(tensor("\"F32\"", "[2]", "[0,4]"), 4, "expected 8 bytes");
  expect(tensor("\"F32\"", "[1]", "[4,0]"), 4, "expected 4 bytes");
  expect(tensor("\"F32\"", "[1]", "[0]"), 4, "two data_offsets");
  expect(tensor("\"F32\"", "[1]", "[0,4]"), 3, "cut short");
  expect(tensor("\"F32\"", "[1]", "[0,4]"), 5, "found 5 bytes");
  expect(tensor("\"F32\"", "[1]", "[1,5]"), 5, "a gap");
  const std::string x = "\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":";
  expect("{\"x\":{" + x + "[0,2]},\"y\":{" + x + "[1,3]}}", 3, "overlap");
  expect("{\"x\":{" + x + "[0,2]},\"x\":{" + x + "[0,2]}}", 2, "\"x\" twice");
}

TEST_F(Safetensors, BooleansMustBeZeroOrOne) {
  const std::string header = R"({"x":{"dtype":"BOOL","shape":[1],"data_offsets":[0,1]}})";
  const uint64_t length = header.size();
  put(std::string(reinterpret_cast<const char*>(&length), 8) + header + '\2');
  EXPECT_NE(fault().find("BOOL"), std::string::npos);
}

TEST_F(Safetensors, NoFileAFolderAndShortFiles) {
  path = (folder / "absent").string();
  EXPECT_NE(fault().find("No such file"), std::string::npos);
  path = folder.string();
  EXPECT_NE(fault().find("a folder"), std::string::npos);
  path = (folder / "short").string();
  put("1234567");
  EXPECT_NE(fault().find("7 bytes"), std::string::npos);
  put("\xff\xff\xff\xff\xff\xff\xff\xff");
  EXPECT_NE(fault().find("header"), std::string::npos);
}

TEST_F(Safetensors, RefusesWhatTheFormatCannotHold) {
  TensorFile file;
  file.tensors["z"] = at::zeros({1}, at::kComplexFloat);
  EXPECT_THROW(write_tensors(path, file), Error);
  file.tensors = {{"z", at::Tensor()}};
  EXPECT_THROW(write_tensors(path, file), Error);
  file.tensors = {{"\xff", at::zeros(1)}};
  EXPECT_THROW(write_tensors(path, file), Error);
  file.tensors = {{"__metadata__", at::zeros(1)}};
  EXPECT_THROW(write_tensors(path, file), Error);
  EXPECT_TRUE(std::filesystem::is_empty(folder));
}

TEST_F(Safetensors, FailedWriteKeepsTheOldFile) {
  write_tensors(path, example());
  const auto before = bytes();
  TensorFile large;
  large.tensors["large"] = at::zeros({1 << 18});
  rlimit old;
  getrlimit(RLIMIT_FSIZE, &old);
  rlimit small = old;
  small.rlim_cur = 1 << 16;
  setrlimit(RLIMIT_FSIZE, &small);
  std::string message = "none";
  try {
    write_tensors(path, large);
  } catch (const Error& error) {
    message = error.what();
  }
  setrlimit(RLIMIT_FSIZE, &old);
  EXPECT_NE(message.find("File too large"), std::string::npos) << message;
  EXPECT_EQ(bytes(), before);
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder), std::filesystem::directory_iterator()), 1);
}

TEST_F(Safetensors, MutatedFilesReadOrThrow) {
  write_tensors(path, example());
  const auto whole = bytes();
  uint64_t length = 0;
  std::memcpy(&length, whole.data(), 8);
  std::mt19937_64 random(1);
  const std::string tokens[] = {"-", "9", "[", "]", "{", "}", "\"", "e9", ",", ":", "0", std::string(1, '\0'), "\xff"};
  int64_t threw = 0;
  for (int64_t round = 0; round < 2000; ++round) {
    std::string mutated = whole;
    const auto edits = 1 + random() % 3;
    for (uint64_t edit = 0; edit < edits; ++edit) {
      // Mostly within the header: the data bytes carry no structure.
      const size_t at =
          random() % 4 ? random() % std::min<size_t>(mutated.size(), 8 + length) : random() % mutated.size();
      switch (random() % 5) {
        case 0:
          mutated[at] = static_cast<char>(random());
          break;
        case 1:
          mutated[at] ^= static_cast<char>(1 << (random() % 8));
          break;
        case 2:
          mutated.insert(at, tokens[random() % std::size(tokens)]);
          break;
        case 3:
          mutated.erase(at, 1 + random() % 8);
          break;
        default:
          mutated.resize(at + 1);
      }
    }
    put(mutated);
    try {
      read_tensors(path);
    } catch (const Error& error) {
      ++threw;
      EXPECT_EQ(std::string(error.what()).find('\n'), std::string::npos) << error.what();
    }
  }
  EXPECT_GT(threw, 1000);
}

}  // namespace
}  // namespace kinfolk
