#include <ATen/core/dispatch/Dispatcher.h>
#include <gtest/gtest.h>

#include "kinfolk/ops/scan_decay.h"
#include "kinfolk/reference/scan_checks.h"

namespace kinfolk {
namespace {

// As Python calls it: by name, arguments on a stack, defaults for the rest.
TEST(ScanDecayLibrary, TheRegisteredOperatorIsTheFunction) {
  const auto operation = c10::Dispatcher::singleton().findSchemaOrThrow("kinfolk::scan_decay", "");
  at::manual_seed(1);
  const Tensor q = at::randn({1, 2, 40, 16}), k = at::randn({1, 2, 40, 16}), v = at::randn({1, 2, 40, 8}),
               decay = -at::rand({1, 2, 40}), state = at::randn({1, 2, 16, 8});
  DecayScan scan{q, k, v, state};
  scan.gate = {decay, {}, true};
  const DecayScanned want = scan_decay(scan, 64);
  const reference::Tensors in = reference::leaves({q, k, v, decay, state});
  torch::jit::Stack stack;
  for (const auto& argument : operation.schema().arguments()) {
    const std::string& name = argument.name();
    if (name == "q")
      stack.emplace_back(in[0]);
    else if (name == "k")
      stack.emplace_back(in[1]);
    else if (name == "v")
      stack.emplace_back(in[2]);
    else if (name == "decay")
      stack.emplace_back(in[3]);
    else if (name == "state")
      stack.emplace_back(in[4]);
    else
      stack.emplace_back(*argument.default_value());
  }
  operation.callBoxed(stack);
  ASSERT_EQ(stack.size(), 3u);
  EXPECT_TRUE(stack[0].toTensor().equal(want.out));
  EXPECT_TRUE(stack[1].toTensor().equal(want.state));
  EXPECT_EQ(stack[2].toTensor().numel(), 0);
  for (const Tensor& g : reference::gradients({stack[0].toTensor()}, {at::ones_like(want.out)}, in)) {
    EXPECT_GT(g.abs().max().item<double>(), 0);
  }
}

}  // namespace
}  // namespace kinfolk
