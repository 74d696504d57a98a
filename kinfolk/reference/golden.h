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
  double absolute = 1e-5, relative = 1e-4;

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
      const std::string tolerance = read.metadata.at("tolerance");
      if (!tolerance.empty() && tolerance[0] == '{') {  // recurrent rows: JSON with float32, float64, rule
        one.absolute = one.relative = nlohmann::json::parse(tolerance).at("float32").get<double>();
      } else if (std::sscanf(tolerance.c_str(), "atol %lf rtol %lf", &one.absolute, &one.relative) != 2) {
        throw std::runtime_error(one.name + ": tolerance not understood: " + tolerance);
      }
      out.push_back(std::move(one));
    }
  }
  EXPECT_FALSE(out.empty()) << "no golden cases of " << row << " in " << folder();
  return out;
}

/// |got - want| <= absolute + relative |want| everywhere, and got is finite.
inline void expect_close(const at::Tensor& got, const at::Tensor& want, const Case& one, const std::string& what,
                         double slack = 1) {
  ASSERT_EQ(got.sizes(), want.sizes()) << one.name << " " << what;
  const at::Tensor g = got.detach().to(at::kDouble), w = want.detach().to(at::kDouble);
  const at::Tensor excess = (g - w).abs() - slack * (one.absolute + one.relative * w.abs());
  EXPECT_TRUE(g.isfinite().all().item<bool>()) << one.name << " " << what << " is not finite";
  if (w.numel() > 0) {
    EXPECT_LE(excess.max().item<double>(), 0)
        << one.name << " " << what << ": largest difference " << (g - w).abs().max().item<double>();
  }
}

}  // namespace kinfolk::golden
