// Reads a text within 64 KiB of state, however long it is; saves the session; goes on from the file with two endings.
#include <ATen/ATen.h>

#include <iostream>

#include "kinfolk/eval/session.h"

namespace {

at::Tensor bytes(const std::string& text) {
  return at::from_blob(const_cast<char*>(text.data()), {1, int64_t(text.size())}, at::kByte).to(at::kLong);
}

}  // namespace

int main(int count, char** arguments) try {
  const std::string recipe = count > 1 ? arguments[1] : "rope", file = count > 2 ? arguments[2] : "reading.session";
  const auto model = kinfolk::Model::make(kinfolk::load_recipe(recipe), kinfolk::load_size("tiny"));
  kinfolk::SessionOptions options;
  options.memory_limit = 64 << 10;
  kinfolk::Session session(*model, options);
  std::cerr << session.policy() << '\n';
  for (int chapter = 0; chapter < 50; ++chapter) session.feed(bytes("It is a truth universally acknowledged. "));
  std::cerr << session.position() << " bytes read, state " << session.bytes() << " of " << options.memory_limit << '\n';
  session.save(file);

  auto again = kinfolk::Session::load(*model, file, options);
  kinfolk::Session other = again;                                                      // shares memory until it goes on
  const at::Tensor one = again.feed(bytes("that")), two = other.feed(bytes("which"));  // [1, 256]
  std::cout << one.argmax(-1).item<int64_t>() << ' ' << two.argmax(-1).item<int64_t>() << '\n';
} catch (const std::exception& error) {
  std::cerr << error.what() << '\n';
  return 1;
}
