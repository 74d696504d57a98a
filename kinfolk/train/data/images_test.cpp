#include "kinfolk/train/data/images.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <set>

#include "kinfolk/core/errors.h"
#include "kinfolk/core/safetensors.h"
#include "kinfolk/train/settings.h"

namespace kinfolk {
namespace {

class Images : public testing::Test {
 protected:
  Images() { std::filesystem::create_directories(folder_); }
  ~Images() override { std::filesystem::remove_all(folder_); }
  std::string file(const std::string& name) const { return (folder_ / name).string(); }
  /// `count` images of 2 x 3 pixels: image i holds i, i + 1, ... modulo the levels.
  std::string write(const std::string& name, int64_t count, const std::string& levels = "7") const {
    const Tensor first = at::arange(count, at::kLong).view({count, 1, 1});
    const Tensor images = (first + at::arange(6, at::kLong).view({1, 2, 3})).remainder(7).to(at::kByte);
    return write(name, {{"images", images}}, levels);
  }
  std::string write(const std::string& name, const std::map<std::string, Tensor>& tensors,
                    const std::string& levels = "7") const {
    TensorFile out;
    out.tensors = tensors;
    if (!levels.empty()) out.metadata["levels"] = levels;
    write_tensors(file(name), out);
    return file(name);
  }
  static std::string refusal(const std::function<void()>& body) {
    try {
      body();
    } catch (const UsageError& error) {
      return error.what();
    }
    return "nothing was refused";
  }
  std::filesystem::path folder_ =
      std::filesystem::temp_directory_path() / ("kinfolk_images_" + std::to_string(getpid()));
};

TEST_F(Images, AFileIsOneTextOfDocuments) {
  ImageForm form;
  const Text text = read_images(write("a.safetensors", 5), form);
  EXPECT_EQ(form, (ImageForm{2, 3, 7}));
  EXPECT_EQ(text.size(), 30);
  ASSERT_EQ(text.documents.size(), 5u);
  EXPECT_EQ(text.document(4)[0], 4);
  EXPECT_EQ(text.document(4)[5], 2);
  read_images(write("b.safetensors", 5, ""), form);
  EXPECT_EQ(form.levels, 256);
  EXPECT_EQ(size_for({}, form).vocabulary, 257);
  EXPECT_EQ(size_for({}, form).context, 6);
  EXPECT_EQ(size_for({}, {}).vocabulary, Size{}.vocabulary);
}

TEST_F(Images, WhatIsNoImageIsRefused) {
  ImageForm form;
  const auto words = [&](const std::string& path) { return refusal([&] { read_images(path, form); }); };
  const auto expect = [&](const std::string& path, const std::string& part) {
    const std::string found = words(path);
    EXPECT_EQ(found.rfind("[data] " + path, 0), 0u) << found;
    EXPECT_NE(found.find("expected"), std::string::npos) << found;
    EXPECT_NE(found.find(part), std::string::npos) << found;
  };
  expect(write("float.safetensors", {{"images", at::zeros({2, 2, 2})}}), "Float [2, 2, 2]");
  expect(write("flat.safetensors", {{"images", at::zeros({2, 4}, at::kByte)}}), "Byte [2, 4]");
  expect(write("colour.safetensors", {{"images", at::zeros({2, 2, 2, 3}, at::kByte)}}), "Byte [2, 2, 2, 3]");
  expect(write("none.safetensors", {{"images", at::zeros({0, 2, 2}, at::kByte)}}), "[0, 2, 2]");
  expect(write("named.safetensors", {{"pictures", at::zeros({2, 2, 2}, at::kByte)}}), "one named pictures");
  expect(write("high.safetensors", {{"images", at::full({2, 2, 2}, 7, at::kByte)}}), "levels below 7");
  expect(write("levels.safetensors", 2, "many"), "many");
  expect(write("levels.safetensors", 2, "1"), "2 to 256 levels");
  expect(write("levels.safetensors", 2, "257"), "2 to 256 levels");
  const std::string whole = write("whole.safetensors", 5);
  std::ifstream in(whole, std::ios::binary);
  const std::string bytes{std::istreambuf_iterator<char>(in), {}};
  for (const size_t kept : {size_t{0}, size_t{4}, size_t{20}, bytes.size() - 1}) {
    std::ofstream(file("cut.safetensors"), std::ios::binary) << bytes.substr(0, kept);
    expect(file("cut.safetensors"), "");
  }
  expect(file("nowhere.safetensors"), "");
}

TEST_F(Images, AFolderHoldsBothPartsAndAFileIsDivided) {
  write("train.safetensors", 40);
  write("valid.safetensors", 3);
  EXPECT_TRUE(holds_images(folder_.string()));
  EXPECT_TRUE(holds_images(file("train.safetensors")));
  EXPECT_FALSE(holds_images(file("nowhere.safetensors")));
  const Corpus both = read_corpus(folder_.string());
  EXPECT_EQ(both.train.documents.size(), 40u);
  EXPECT_EQ(both.valid.documents.size(), 3u);
  EXPECT_STREQ(both.unit(), "pixel");
  const Corpus divided = read_corpus(file("train.safetensors"));
  EXPECT_EQ(divided.train.documents.size(), 38u);
  ASSERT_EQ(divided.valid.documents.size(), 2u);
  EXPECT_EQ(divided.valid.document(0)[0], 38 % 7);
  EXPECT_EQ(read_corpus(file("train.safetensors"), file("valid.safetensors")).valid.documents.size(), 3u);
  write("one.safetensors", 1);
  EXPECT_NE(refusal([&] { read_corpus(file("one.safetensors")); }).find("at least 2 images"), std::string::npos);
  write("valid.safetensors", 3, "9");
  EXPECT_NE(refusal([&] { read_corpus(folder_.string()); }).find("of 9 levels"), std::string::npos);
  std::filesystem::remove(file("train.safetensors"));
  EXPECT_NE(refusal([&] { read_corpus(folder_.string()); }).find("train.safetensors"), std::string::npos);
}

TEST_F(Images, RowsStartWithTheStartTokenAndEndWithTheirImage) {
  ImageForm form;
  const Text text = read_images(write("a.safetensors", 5), form);
  const ImageRows rows(text, form, {}, 2, false);
  const Batch batch = rows.at(6, 6);  // images 2 and 3
  EXPECT_TRUE(batch.tokens.equal(at::tensor({7, 2, 3, 4, 5, 6, 7, 3, 4, 5, 6, 0}, at::kLong).view({2, 6})));
  EXPECT_TRUE(batch.fact("target").equal(at::tensor({2, 3, 4, 5, 6, 0, 3, 4, 5, 6, 0, 1}, at::kLong).view({2, 6})));
  // The first pixels of image 0 are 0 1 2 over 3 4 5: blocks of two columns read 0 1 3 4, then 2 5.
  const ImageRows blocks(text, form, {2, 3, 2, 2}, 1, false);
  EXPECT_TRUE(blocks.at(0, 6).fact("target").equal(at::tensor({0, 1, 3, 4, 2, 5}, at::kLong).view({1, 6})));
  EXPECT_THROW(rows.at(0, 5), Error);
  EXPECT_THROW(rows.at(3, 6), Error);
  EXPECT_NE(refusal([&] {
              ImageRows(text, form, {3, 2}, 1, false);
            }).find("--set let.rows=2 --set let.columns=3"),
            std::string::npos);
}

TEST_F(Images, EachPassIsAnotherPermutationAndThePositionAloneDecides) {
  ImageForm form;
  const Text text = read_images(write("a.safetensors", 7), form);  // image i starts with level i
  const ImageRows rows(text, form, {}, 2, true);
  std::vector<int64_t> seen;
  std::vector<Tensor> batches;
  for (int64_t step = 0; step < 7; ++step) {
    batches.push_back(rows.at(step * 6, 6).fact("target"));
    for (int64_t lane = 0; lane < 2; ++lane) seen.push_back(batches.back()[lane][0].item<int64_t>());
  }
  const std::vector<int64_t> first(seen.begin(), seen.begin() + 7), second(seen.begin() + 7, seen.end());
  EXPECT_EQ(std::set<int64_t>(first.begin(), first.end()).size(), 7u);
  EXPECT_EQ(std::set<int64_t>(second.begin(), second.end()).size(), 7u);
  EXPECT_NE(first, second);
  const ImageRows again(text, form, {}, 2, true);
  for (const int64_t step : {5, 0, 6, 3}) {
    EXPECT_TRUE(again.at(step * 6, 6).fact("target").equal(batches[static_cast<size_t>(step)])) << step;
  }
}

TEST_F(Images, TrainingTakesWholeImagesAlone) {
  write("train.safetensors", 40);
  write("valid.safetensors", 3);
  const Corpus corpus = read_corpus(folder_.string());
  TrainSettings settings;
  settings.length = 6, settings.lanes = 4, settings.tokens = 24;
  EXPECT_TRUE(training_source(corpus, settings, {})->whole());
  settings.length = 12;
  EXPECT_NE(refusal([&] { training_source(corpus, settings, {}); }).find("expected 6"), std::string::npos);
  settings.length = 6, settings.tokens = 23;
  EXPECT_NE(refusal([&] { training_source(corpus, settings, {}); }).find("24 pixels"), std::string::npos);
}

}  // namespace
}  // namespace kinfolk
