// Images: trained on, scored, drawn, completed; bad files and flags without effect are refused in one line.
#include <nlohmann/json.hpp>

#include "kinfolk/core/safetensors.h"
#include "tests/cli/program.h"

namespace kinfolk {
namespace {

using nlohmann::json;

class ImagesOf : public ProgramTest {
 protected:
  /// Bright columns of 4 x 4 pixels on dark ground.
  static at::Tensor columns(int64_t count) {
    at::Tensor images = at::zeros({count, 4, 4}, at::kByte);
    for (int64_t i = 0; i < count; ++i) images[i].select(1, i % 4).fill_(3 + i % 2);
    return images;
  }
  void write_images(const std::string& file, const at::Tensor& images, const std::string& levels = "5") const {
    std::filesystem::create_directories((folder / file).parent_path());
    TensorFile out;
    out.tensors["images"] = images;
    out.metadata["levels"] = levels;
    write_tensors((folder / file).string(), out);
  }
  void write_columns() const {
    write_images("columns/train.safetensors", columns(64));
    write_images("columns/valid.safetensors", columns(12));
  }
  ProgramResult train_on(const std::string& data, const std::vector<std::string>& more = {}) const {
    std::vector<std::string> words = {"train",  "image_1d",      "--data", data,
                                      "--size", "size.toml",     "--set",  "let.rows=4",
                                      "--set",  "let.columns=4", "--out",  "run"};
    words.insert(words.end(), more.begin(), more.end());
    return run(words);
  }
};

TEST_F(ImagesOf, TrainEvalAndGenerate) {
  write_columns();
  const ProgramResult trained = train_on("columns", {"--tokens", "12k"});
  ASSERT_EQ(trained.status, 0) << trained.err;
  EXPECT_TRUE(has(trained.out, "bits per pixel held out")) << trained.out;
  EXPECT_TRUE(has(trained.err, "bits/pixel")) << trained.err;
  EXPECT_FALSE(has(trained.err, "bits/byte")) << trained.err;
  EXPECT_TRUE(has(read("run/result.json"), "\"valid_bpd\""));
  EXPECT_TRUE(has(read("run/size.toml"), "vocabulary = 6"));

  const ProgramResult scored = run({"eval", "run", "--data", "columns", "--json"});
  ASSERT_EQ(scored.status, 0) << scored.err;
  const json found = json::parse(scored.out);
  EXPECT_EQ(found["images"], 12);
  EXPECT_EQ(found["rows"].size(), 4u);
  EXPECT_EQ(found["baselines"].size(), 6u);
  EXPECT_LT(found["bits_per_pixel"].get<double>(), 1);  // 2.3 without learning
  EXPECT_TRUE(has(run({"eval", "run", "--data", "columns"}).out, "bits/pixel"));

  const std::vector<std::string> drawing = {"generate", "run", "--images", "4", "--temperature", "1", "--quiet"};
  const auto draw = [&](const std::vector<std::string>& more) {
    std::vector<std::string> words = drawing;
    words.insert(words.end(), more.begin(), more.end());
    return run(words);
  };
  const ProgramResult shown = draw({});
  EXPECT_EQ(shown.status, 0) << shown.err;
  EXPECT_EQ(std::count(shown.out.begin(), shown.out.end(), '\n'), 9);  // two images, a gap, two images
  EXPECT_EQ(shown.out, draw({}).out);
  EXPECT_NE(shown.out, draw({"--seed", "77"}).out);
  const json four = json::parse(draw({"--json"}).out);
  EXPECT_EQ(four["levels"], 5);
  ASSERT_EQ(four["images"].size(), 4u);
  EXPECT_EQ(four["images"][0].size(), 4u);
  EXPECT_EQ(json::parse(draw({"--json", "--seed", "2"}).out)["images"][0], four["images"][1]);

  const ProgramResult drawn = draw({"--out", "samples.svg"});
  EXPECT_EQ(drawn.status, 0) << drawn.err;
  EXPECT_TRUE(has(drawn.out, "samples.svg")) << drawn.out;
  EXPECT_EQ(read("samples.svg").rfind("<svg ", 0), 0u);
  EXPECT_EQ(draw({"--out", "samples.pgm"}).status, 0);
  EXPECT_EQ(read("samples.pgm").rfind("P5\n72 72\n", 0), 0u);

  const json completed = json::parse(draw({"--complete", "columns", "--json"}).out);
  for (size_t i = 0; i < 4; ++i)
    for (size_t row = 0; row < 2; ++row) EXPECT_EQ(completed["images"][i][row], completed["originals"][i][row]);
}

TEST_F(ImagesOf, WhatDoesNotFitIsRefused) {
  write_columns();
  write_images("other/train.safetensors", columns(8).slice(1, 0, 3));
  write_images("other/valid.safetensors", columns(8).slice(1, 0, 3));
  ASSERT_EQ(train_on("columns", {"--tokens", "640"}).status, 0);
  ASSERT_EQ(train("rope", "text").status, 0);
  expect_refusal(run({"eval", "run", "--data", "book.txt"}), 2, {"images of 4 x 4 pixels of 5 levels", "a text"});
  expect_refusal(run({"eval", "text", "--data", "columns"}), 2, {"a text", "images of 4 x 4"});
  expect_refusal(run({"eval", "run", "--data", "other"}), 2, {"4 x 4", "3 x 4"});
  expect_refusal(run({"eval", "run", "--data", "columns", "--lengths", "8"}), 2, {"[--lengths]", "images"});
  expect_refusal(run({"generate", "run"}), 2, {"--images"});
  expect_refusal(run({"generate", "text", "--images", "2"}), 2, {"[--images]", "book.txt"});
  expect_refusal(run({"generate", "text", "--out", "a.svg"}), 2, {"[--out]", "--images"});
  expect_refusal(run({"generate", "run", "--images", "2", "--out", "a.png"}), 2, {"[--out]", ".svg or .pgm", "a.png"});
  expect_refusal(run({"generate", "run", "--images", "2", "--prompt", "a"}), 2, {"[--prompt]", "--images"});
  expect_refusal(run({"generate", "run", "--images", "2", "-n", "5"}), 2, {"[--tokens]", "--images"});
  expect_refusal(run({"generate", "run", "--images", "2", "--temperature", "-1"}), 2, {"temperature"});
  expect_refusal(run({"generate", "run", "--images", "0"}), 2, {"[--images]", "at least 1"});
  expect_refusal(run({"generate", "run", "--images", "13", "--complete", "columns"}), 2, {"at most 12", "13"});
  expect_refusal(run({"generate", "run", "--images", "2", "--complete", "book.txt"}), 2, {"[--complete]", "book.txt"});
  expect_refusal(run({"generate", "run", "--images", "2", "--complete", "other"}), 2, {"3 x 4"});
  expect_refusal(run({"train", "image_2d", "--data", "columns", "--size", "size.toml", "--out", "wrong"}), 2,
                 {"8 x 8", "--set let.rows=4 --set let.columns=4"});
  expect_refusal(run({"train", "rope", "--data", "columns", "--size", "size.toml", "--length", "8", "--out", "wrong"}),
                 2, {"[train.length]", "16"});
  expect_refusal(run({"compare", "rope", "image_1d", "--data", "columns", "--out", "wrong"}), 2,
                 {"[compare]", "images", "columns"});
  EXPECT_FALSE(exists("wrong"));
}

TEST_F(ImagesOf, BadFiles) {
  write_columns();
  const std::string whole = read("columns/train.safetensors");
  const auto refused = [&](const std::vector<std::string>& parts) {
    expect_refusal(train_on("columns"), 2, parts);
    EXPECT_FALSE(exists("run"));
  };
  write("columns/train.safetensors", whole.substr(0, whole.size() / 2));
  refused({"columns/train.safetensors"});
  write("columns/train.safetensors", "");
  refused({"columns/train.safetensors"});
  write_images("columns/train.safetensors", columns(8).to(at::kFloat));
  refused({"images U8 [N, rows, columns]", "Float"});
  write_images("columns/train.safetensors", columns(8).flatten(1));
  refused({"images U8 [N, rows, columns]", "[8, 16]"});
  write_images("columns/train.safetensors", columns(8), "4");
  refused({"levels below 4", "4"});
  write_images("columns/train.safetensors", columns(8).slice(2, 0, 3));
  refused({"4 x 3", "4 x 4"});
  std::filesystem::remove(folder / "columns/train.safetensors");
  refused({"train.safetensors"});
}

}  // namespace
}  // namespace kinfolk
