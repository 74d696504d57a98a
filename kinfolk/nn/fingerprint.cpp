#include "kinfolk/nn/fingerprint.h"

#include <cinttypes>
#include <cstdio>
#include <cstring>
#include <map>

namespace kinfolk {
namespace {

constexpr uint64_t kOdd[] = {0x9e3779b97f4a7c15u, 0xc2b2ae3d27d4eb4fu, 0x165667b19e3779f9u, 0xd6e8feb86659fd93u};

uint64_t mix(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

uint64_t hash_text(const std::string& text, uint64_t seed) { return hash_bytes(text.data(), text.size(), seed); }

uint64_t hash_tensor(const std::string& name, const Tensor& tensor, uint64_t seed) {
  const Tensor plain = tensor.detach().to(at::kCPU).contiguous();
  std::string about = name + ' ' + c10::toString(plain.scalar_type());
  for (const int64_t size : plain.sizes()) about += ' ' + std::to_string(size);
  return hash_bytes(plain.const_data_ptr(), plain.nbytes(), hash_text(about, seed));
}

}  // namespace

uint64_t hash_bytes(const void* bytes, size_t count, uint64_t seed) {
  const auto* at = static_cast<const unsigned char*>(bytes);
  uint64_t lanes[4], words[4];
  for (int i = 0; i < 4; ++i) lanes[i] = mix(seed + kOdd[i]);
  size_t left = count;
  for (; left >= sizeof words; left -= sizeof words, at += sizeof words) {
    std::memcpy(words, at, sizeof words);
    for (int i = 0; i < 4; ++i) {
      lanes[i] = (lanes[i] ^ words[i]) * kOdd[0];
      lanes[i] ^= lanes[i] >> 29;
    }
  }
  std::memset(words, 0, sizeof words);
  if (left > 0) std::memcpy(words, at, left);
  uint64_t out = mix(count ^ seed);
  for (int i = 0; i < 4; ++i) out = mix(out ^ mix(lanes[i] ^ mix(words[i] + kOdd[i])));
  return out;
}

std::string hexadecimal(uint64_t number) {
  char out[24];
  std::snprintf(out, sizeof out, "%016" PRIx64, number);
  return out;
}

std::string fingerprint(const Model& model) {
  std::map<std::string, Tensor> parts;  // in the order of names; a shared component counts at each of its places
  const auto add = [&](const auto& named) {
    for (const auto& item : named) {
      if (item.value().defined() && item.key().rfind("head.", 0) != 0) parts[item.key()] = item.value();
    }
  };
  add(model.named_parameters());
  add(model.named_buffers());
  uint64_t hash = 0;
  for (const auto& [name, tensor] : parts) hash = hash_tensor(name, tensor, hash);
  return hexadecimal(hash);
}

}  // namespace kinfolk
