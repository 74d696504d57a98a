// Makes a member of the family from its recipe and decodes greedily after a text, one byte at a time, with its state
// carried.
#include <ATen/ATen.h>

#include <iostream>

#include "kinfolk/nn/model.h"

int main(int count, char** arguments) try {
  const std::string recipe = count > 1 ? arguments[1] : "rope", text = "It is a truth";
  const auto model = kinfolk::Model::make(kinfolk::load_recipe(recipe), kinfolk::load_size("tiny"));
  model->eval();
  kinfolk::State state = model->start(1);
  at::Tensor next = at::from_blob(const_cast<char*>(text.data()), {1, int64_t(text.size())}, at::kByte).to(at::kLong);
  for (int step = 0; step < 8; ++step) {
    next = model->score({next, {}}, &state).select(1, -1).argmax(-1, true);  // [1, 1]
    std::cout << next.item<int64_t>() << (step < 7 ? ' ' : '\n');
  }
} catch (const std::exception& error) {
  std::cerr << error.what() << '\n';
  return 1;
}
