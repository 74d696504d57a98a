// Which model made this: one number of all that decides its hidden states.
#pragma once
#include <cstdint>
#include <string>

#include "kinfolk/nn/model.h"

namespace kinfolk {

/// 16 hexadecimal digits of every weight and buffer that the hidden states after the last norm come from: name, type,
/// sizes and bits. What the head owns is left out, so that a head may be wrapped, and another one trained above the
/// same layers. The same in every process and on every device; a changed bit changes it. Reads each weight once (some
/// GB/s). States, memories and datastores of one model are those of every model with the same fingerprint. Numbers of
/// the recipe that shape no weight (a window, a temperature) do not count.
std::string fingerprint(const Model& model);

/// A 64-bit hash of bytes; `seed` is the hash of what came before.
uint64_t hash_bytes(const void* bytes, size_t count, uint64_t seed = 0);

/// 16 hexadecimal digits.
std::string hexadecimal(uint64_t number);

}  // namespace kinfolk
