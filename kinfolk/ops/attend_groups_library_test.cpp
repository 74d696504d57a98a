#include <ATen/core/dispatch/Dispatcher.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include "kinfolk/core/errors.h"
#include "kinfolk/ops/angular_hash.h"
#include "kinfolk/ops/attend_groups.h"

namespace kinfolk {
namespace {
using torch::jit::Stack;

Tensor call(const std::string& name, const Stack& first, const std::map<std::string, c10::IValue>& named = {}) {
  const auto op = c10::Dispatcher::singleton().findSchemaOrThrow(("kinfolk::" + name).c_str(), "");
  Stack stack = first;
  const auto& arguments = op.schema().arguments();
  for (size_t i = stack.size(); i < arguments.size(); ++i) {
    const auto found = named.find(arguments[i].name());
    stack.push_back(found == named.end() ? *arguments[i].default_value() : found->second);
  }
  op.callBoxed(stack);
  return stack.at(0).toTensor();
}

Tensor draw(at::IntArrayRef sizes, uint64_t seed) {
  return at::normal(0, 1, sizes, at::detail::createCPUGenerator(seed), at::kFloat).set_requires_grad(true);
}

TEST(AttendGroupsLibrary, LshAttendIsItsParts) {
  const Tensor qk = draw({2, 2, 100, 16}, 1), v = draw({2, 2, 100, 8}, 2),
               rotations = draw({2, 3, 1, 16, 4}, 3).detach();
  const Tensor valid = at::arange(100, at::kLong).lt(at::tensor({100, 61}, at::kLong).unsqueeze(1));
  const Tensor out = call("lsh_attend", {qk, v, rotations}, {{"chunk", 16}, {"buckets", 8}, {"valid", valid}});
  const Sequences all = sequences_of(2, 100, valid, {});
  const auto plan = std::make_shared<GroupPlan>();
  plan->own = false, plan->once = true;
  sort_groups(angular_hash(qk, rotations, all, [](int64_t) { return 8; }), all, {.chunk = 16}, *plan);
  const GroupRead read = attend_groups(qk, qk / qk.norm(2, -1, true), v, plan);
  const Tensor want = at::where(read.lse.isneginf().unsqueeze(-1), v, read.out)
                          .masked_fill(valid.logical_not().view({2, 1, 100, 1}), 0);
  EXPECT_LE((out - want).abs().max().item<float>(), 1e-6);
  const auto a = torch::autograd::grad({out.square().sum()}, {qk, v}),
             b = torch::autograd::grad({want.square().sum()}, {qk, v});
  for (size_t i = 0; i < 2; ++i) EXPECT_LE((a[i] - b[i]).abs().max().item<float>(), 1e-4) << i;
  // The number of buckets that follows from the length.
  EXPECT_TRUE(call("lsh_attend", {qk, v, rotations}, {{"chunk", 16}}).isfinite().all().item<bool>());
  EXPECT_THROW(call("lsh_attend", {qk, v, rotations}, {{"wrap", "twice"}}), Error);
  EXPECT_THROW(call("lsh_attend", {qk, v, rotations}, {{"valid", valid.slice(1, 1)}}), Error);
}

TEST(AttendGroupsLibrary, RoutedAttendIsItsParts) {
  const Tensor q = draw({2, 2, 40, 16}, 1), k = draw({2, 2, 40, 16}, 2), v = draw({2, 2, 40, 8}, 3),
               centroids = draw({2, 5, 16}, 4).detach();
  for (const bool shared : {false, true}) {
    const Tensor out = call("routed_attend", {q, shared ? c10::IValue() : c10::IValue(k), v, centroids});
    const auto affinities = [&](const Tensor& x) { return at::matmul(centroids, x.detach().transpose(2, 3)); };
    const auto plan = std::make_shared<GroupPlan>();
    top_groups(affinities(q), affinities(shared ? q : k), sequences_of(2, 40, {}, {}), 0, *plan);
    const Tensor want = combine_groups(attend_groups(q, shared ? q : k, v, plan).out, *plan, true);
    EXPECT_TRUE(out.equal(want)) << shared;
  }
}

TEST(AttendGroupsLibrary, TensorsWithoutNumbersGiveTheShapes) {
  const auto bare = [](at::IntArrayRef sizes) { return at::empty(sizes, at::device(at::kMeta)); };
  const Tensor x = bare({2, 2, 40, 16}), v = bare({2, 2, 40, 8});
  EXPECT_EQ(call("lsh_attend", {x, v, bare({2, 3, 1, 16, 4})}).sizes(), v.sizes());
  EXPECT_EQ(call("routed_attend", {x, x, v, bare({2, 5, 16})}).sizes(), v.sizes());
}

}  // namespace
}  // namespace kinfolk
