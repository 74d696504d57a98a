// Feature maps of linear attention.
#pragma once
#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

namespace kinfolk {
using at::Tensor;

std::vector<std::string> feature_names();
/// phi(x), entry by entry: "elu1" is elu(x) + 1, that is x + 1 for x > 0 and exp(x) otherwise, never rounded to 0 by
/// the addition (Katharopoulos et al. 2020); "identity" is x.
Tensor feature(const std::string& name, const Tensor& x);
/// phi(x) > 0 everywhere: only then may a read be divided by the sum of its weights.
bool feature_positive(const std::string& name);

}  // namespace kinfolk
