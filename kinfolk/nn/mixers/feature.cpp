#include "kinfolk/nn/mixers/feature.h"

#include "kinfolk/core/errors.h"

namespace kinfolk {

std::vector<std::string> feature_names() { return {"elu1", "identity"}; }

Tensor feature(const std::string& name, const Tensor& x) {
  if (name == "identity") return x;
  if (name == "elu1") return at::relu(x) + at::exp(x.clamp_max(0));
  fail("[feature] expected elu1 or identity; found ", name);
}

bool feature_positive(const std::string& name) { return name == "elu1"; }

}  // namespace kinfolk
