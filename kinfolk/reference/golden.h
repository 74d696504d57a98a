// Golden cases: numbers from independent programs, read from $KINFOLK_GOLDEN (default tests/golden). For tests only.
#pragma once
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "kinfolk/core/safetensors.h"

namespace kinfolk::golden {

struct Case {
  std::string name;  ///< file name without its ending
  std::map<std::string, at::Tensor> tensors;
  nlohmann::json config;
  double absolute = 0, relative = 0;  ///< |got - want| <= absolute + relative |want|
  double of_largest = 0;              ///< recurrent rows: <= of_largest * max(largest |want|, 0.1)
  double gradient = 0;                ///< attention rows: gradients <= gradient * (1 + largest |want|)

  void read_tolerance(const std::string& words) {
    if (!words.empty() && words[0] == '{') {
      of_largest = nlohmann::json::parse(words).at("float32").get<double>();
      return;
    }
    const size_t atol = words.find("atol "), grad = words.find("gradients ");
    const bool outputs =
        atol != std::string::npos && std::sscanf(words.c_str() + atol, "atol %lf rtol %lf", &absolute, &relative) == 2;
    gradient = absolute;  // where the words have no other for gradients
    if (!outputs ||
        (grad != std::string::npos && std::sscanf(words.c_str() + grad, "gradients %lf times", &gradient) != 1)) {
      throw std::runtime_error(name + ": tolerance not understood: " + words);
    }
  }
  /// The largest difference allowed at each entry of `want`.
  at::Tensor allowed(const at::Tensor& want, bool is_gradient) const {
    const double largest = want.numel() ? want.abs().max().item<double>() : 0;
    if (of_largest > 0) return at::full_like(want, of_largest * std::max(largest, 0.1));
    if (is_gradient) return at::full_like(want, gradient * (1 + largest));
    return absolute + relative * want.abs();
  }

  bool has(const std::string& key) const { return tensors.count(key) > 0; }
  at::Tensor at(const std::string& key) const {  ///< as double; integer tensors as they are
    const auto found = tensors.find(key);
    if (found == tensors.end()) throw std::runtime_error(name + ": no tensor " + key);
    return found->second.is_floating_point() ? found->second.to(at::kDouble) : found->second;
  }
};

inline std::string folder() {
  const char* set = std::getenv("KINFOLK_GOLDEN");
  return set && *set ? set : std::string(KINFOLK_SOURCE_DIR) + "/tests/golden";
}

/// All cases of a row, e.g. cases("attention/rope"); fails the test when there are none.
inline std::vector<Case> cases(const std::string& row) {
  std::vector<Case> out;
  const std::filesystem::path path = std::filesystem::path(folder()) / row;
  if (std::filesystem::is_directory(path)) {
    std::vector<std::filesystem::path> files;
    for (const auto& entry : std::filesystem::directory_iterator(path))
      if (entry.path().extension() == ".safetensors") files.push_back(entry.path());
    std::sort(files.begin(), files.end());
    for (const auto& file : files) {
      const TensorFile read = read_tensors(file.string());
      Case one;
      one.name = row + "/" + file.stem().string();
      one.tensors = read.tensors;
      one.config = nlohmann::json::parse(read.metadata.at("config"));
      one.read_tolerance(read.metadata.at("tolerance"));
      out.push_back(std::move(one));
    }
  }
  EXPECT_FALSE(out.empty()) << "no golden cases of " << row << " in " << folder();
  return out;
}

/// `got` is finite and within the case's tolerance of `want`.
inline void expect_close(const at::Tensor& got, const at::Tensor& want, const Case& one, const std::string& what,
                         bool is_gradient = false) {
  ASSERT_TRUE(got.defined()) << one.name << " " << what << " is undefined";
  ASSERT_EQ(got.sizes(), want.sizes()) << one.name << " " << what;
  const at::Tensor g = got.detach().to(at::kDouble), w = want.detach().to(at::kDouble);
  EXPECT_TRUE(g.isfinite().all().item<bool>()) << one.name << " " << what << " is not finite";
  if (w.numel() > 0) {
    EXPECT_LE(((g - w).abs() - one.allowed(w, is_gradient)).max().item<double>(), 0)
        << one.name << " " << what << ": largest difference " << (g - w).abs().max().item<double>();
  }
}
inline void expect_gradient(const at::Tensor& got, const at::Tensor& want, const Case& one, const std::string& what) {
  expect_close(got, want, one, what, true);
}

}  // namespace kinfolk::golden
