#include "kinfolk/nn/fingerprint.h"

#include <gtest/gtest.h>

namespace kinfolk {
namespace {

std::shared_ptr<Model> tiny(const char* recipe, uint64_t seed = 1) {
  Size size;
  size.depth = 2, size.width = 16, size.heads = 2, size.feed = 32, size.context = 32;
  return Model::make(load_recipe(recipe), size, seed);
}

TEST(Fingerprint, IsTheSameForTheSameWeightsInEveryProcess) {
  const std::string one = fingerprint(*tiny("rope"));
  EXPECT_EQ(one.size(), 16u);
  EXPECT_EQ(one, fingerprint(*tiny("rope")));
  EXPECT_NE(one, fingerprint(*tiny("rope", 2)));
  EXPECT_EQ(hexadecimal(hash_bytes("hidden state", 12)), "7222c326c494455a");  // of every machine and version
}

TEST(Fingerprint, EveryBitOfWhatMakesHiddenStatesCounts) {
  const auto model = tiny("rope");
  const std::string before = fingerprint(*model);
  at::NoGradGuard guard;
  for (auto& item : model->named_parameters()) {
    if (item.key().rfind("head.", 0) == 0) continue;
    const Tensor kept = item.value().clone();
    item.value().view(-1)[-1] = std::nextafter(kept.view(-1)[-1].item<float>(), 1e9F);
    EXPECT_NE(fingerprint(*model), before) << item.key();
    item.value().copy_(kept);
  }
  EXPECT_EQ(fingerprint(*model), before);
}

TEST(Fingerprint, AWrappedHeadChangesNothing) {
  EXPECT_EQ(fingerprint(*tiny("rope")), fingerprint(*tiny("knn_lm")));  // rope with a datastore
}

TEST(Fingerprint, BytesAndTheirNumberCount) {
  std::string text(100, '\0');
  std::set<uint64_t> seen;
  for (size_t n = 0; n <= text.size(); ++n) seen.insert(hash_bytes(text.data(), n));
  for (size_t n = 0; n < text.size(); ++n) {
    text[n] = 1;
    seen.insert(hash_bytes(text.data(), text.size()));
    text[n] = 0;
  }
  EXPECT_EQ(seen.size(), 201u);
  EXPECT_NE(hash_bytes(text.data(), 8, 1), hash_bytes(text.data(), 8, 2));
}

}  // namespace
}  // namespace kinfolk
