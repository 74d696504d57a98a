// Products in bfloat16 while it lives.
#pragma once
#include <ATen/autocast_mode.h>

namespace kinfolk {

/// Autocast on the CPU when `bf16`, nothing otherwise. Its cache of converted weights is cleared at the end, since the
/// weights change after every step.
class Autocast {
 public:
  explicit Autocast(bool bf16) : on_(bf16) {
    if (!on_) return;
    was_ = at::autocast::is_autocast_enabled(at::kCPU);
    type_ = at::autocast::get_autocast_dtype(at::kCPU);
    at::autocast::set_autocast_enabled(at::kCPU, true);
    at::autocast::set_autocast_dtype(at::kCPU, at::kBFloat16);
  }
  ~Autocast() {
    if (!on_) return;
    at::autocast::clear_cache();
    at::autocast::set_autocast_dtype(at::kCPU, type_);
    at::autocast::set_autocast_enabled(at::kCPU, was_);
  }
  Autocast(const Autocast&) = delete;
  Autocast& operator=(const Autocast&) = delete;

 private:
  bool on_, was_ = false;
  at::ScalarType type_ = at::kFloat;
};

}  // namespace kinfolk
