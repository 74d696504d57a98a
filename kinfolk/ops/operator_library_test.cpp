#include "kinfolk/ops/operator_library.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include "kinfolk/core/errors.h"

namespace kinfolk {
namespace {
using torch::jit::Stack;

const std::vector<std::string> kOperators{"attend", "scan_decay", "scan_delta", "scan_selective", "short_conv"};

/// A call by name; arguments that are not given take their default.
Stack call(const std::string& name, const Stack& first) {
  const auto op = c10::Dispatcher::singleton().findSchemaOrThrow(("kinfolk::" + name).c_str(), "");
  Stack stack = first;
  const auto& arguments = op.schema().arguments();
  for (size_t i = stack.size(); i < arguments.size(); ++i) stack.push_back(*arguments[i].default_value());
  op.callBoxed(stack);
  return stack;
}

std::vector<Tensor> inputs(const std::string& name) {
  at::manual_seed(1);
  const auto draw = [](at::IntArrayRef sizes) { return at::randn(sizes).requires_grad_(true); };
  if (name == "short_conv") return {draw({2, 19, 5}), draw({5, 4})};
  if (name == "scan_selective") {
    return {draw({2, 19, 16}), draw({2, 19, 16}), draw({16, 4}), draw({2, 19, 4}), draw({2, 19, 4})};
  }
  std::vector<Tensor> all{draw({2, 4, 19, 16}), draw({2, 4, 19, 16}), draw({2, 4, 19, 16})};
  if (name == "scan_delta") all.push_back(at::rand({2, 4, 19}).requires_grad_(true));
  return all;
}

Stack stack_of(const std::vector<Tensor>& tensors) { return {tensors.begin(), tensors.end()}; }

std::vector<Tensor> on(at::Device device, const std::vector<Tensor>& tensors) {
  std::vector<Tensor> moved;
  for (const Tensor& t : tensors) moved.push_back(t.detach().to(device).requires_grad_(true));
  return moved;
}

TEST(OperatorLibrary, TensorsWithoutNumbersGiveTheShapesOfResultsAndGradients) {
  for (const std::string& name : kOperators) {
    const std::vector<Tensor> real = inputs(name), bare = on(at::kMeta, real);
    const Stack want = call(name, stack_of(real)), got = call(name, stack_of(bare));
    ASSERT_EQ(got.size(), want.size()) << name;
    for (size_t i = 0; i < got.size(); ++i) {
      EXPECT_TRUE(got[i].toTensor().is_meta()) << name;
      EXPECT_EQ(got[i].toTensor().sizes(), want[i].toTensor().sizes()) << name;
      EXPECT_EQ(got[i].toTensor().strides(), want[i].toTensor().strides()) << name;
      EXPECT_EQ(got[i].toTensor().scalar_type(), want[i].toTensor().scalar_type()) << name;
    }
    const auto grads = torch::autograd::grad({got[0].toTensor().sum()}, bare);
    for (size_t i = 0; i < grads.size(); ++i) EXPECT_EQ(grads[i].sizes(), real[i].sizes()) << name;
  }
}

TEST(OperatorLibrary, GradientsByNameWithAndWithoutTheTape) {
  for (const std::string& name : kOperators) {
    const std::vector<Tensor> given = inputs(name), bare = on(at::kCPU, given);
    const Tensor out = call(name, stack_of(given))[0].toTensor(), go = at::randn_like(out);
    const auto want = torch::autograd::grad({out}, given, {go});

    const at::NoGradGuard guard;
    c10::List<bool> wants;
    for (size_t i = 0; i < given.size(); ++i) wants.push_back(true);
    Stack first{wants};
    for (const Tensor& t : bare) first.emplace_back(t.detach());
    Stack recorded = call(name + "_recorded", first);
    const Tensor tape = torch::jit::pop(recorded).toTensor();
    EXPECT_TRUE(recorded[0].toTensor().equal(out)) << name;
    c10::List<std::optional<Tensor>> grads;
    std::vector<Tensor> results;
    for (const auto& result : recorded) {
      grads.push_back(results.empty() ? std::optional(go) : std::nullopt);
      results.push_back(result.toTensor());
    }
    for (const Tensor& each : {tape, tape, tape.clone(), Tensor()}) {
      Stack back{grads, wants, results, each.defined() ? c10::IValue(each) : c10::IValue()};
      back.insert(back.end(), first.begin() + 1, first.end());
      const auto got = call(name + "_backward", back)[0].toTensorVector();
      ASSERT_EQ(got.size(), want.size()) << name;
      for (size_t i = 0; i < got.size(); ++i) EXPECT_TRUE(got[i].allclose(want[i], 1e-5, 1e-5)) << name << " " << i;
    }
  }
}

TEST(OperatorLibrary, WrongNumbersOfMarksAndGradientsAreNamed) {
  const Stack arguments = stack_of(on(at::kCPU, inputs("attend")));
  const auto backward = [&](size_t grads, size_t marks) {
    c10::List<std::optional<Tensor>> none;
    for (size_t i = 0; i < grads; ++i) none.push_back(std::nullopt);
    c10::List<bool> wants;
    for (size_t i = 0; i < marks; ++i) wants.push_back(true);
    Stack all{none, wants, std::vector<Tensor>{}, c10::IValue()};
    all.insert(all.end(), arguments.begin(), arguments.end());
    const at::NoGradGuard guard;
    return call("attend_backward", all);
  };
  EXPECT_EQ(backward(2, 3)[0].toTensorVector().size(), 3u);
  EXPECT_THROW(backward(2, 2), Error);
  EXPECT_THROW(backward(1, 3), Error);
}

}  // namespace
}  // namespace kinfolk
