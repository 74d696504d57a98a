// Buckets of like keys, for the approximate search of a memory: k-means, fitted anew as the memory fills and changes.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>

namespace kinfolk {
using at::Tensor;

/// The bucket of each key: the centre at the smallest distance, of equally near ones the first. keys [G, M, d], centre
/// [G, K, d] -> int32 [G, M].
Tensor nearest_bucket(const Tensor& keys, const Tensor& centre);

/// Centres [G, K, d] of keys [G, M, d], M >= K, by a few steps of Lloyd's algorithm on at most 32 K keys, taken evenly.
/// centre: where it begins; undefined: at keys taken evenly. A bucket that loses its last key keeps its centre.
Tensor fit_centres(const Tensor& keys, int64_t buckets, Tensor centre = {});

/// Whether to fit again once `entered` keys have entered a memory of `slots`, fitted last at `fitted` of them (0:
/// never): at 2 K, at every doubling, then each time that half the memory is new.
bool fit_is_due(int64_t entered, int64_t fitted, int64_t slots, int64_t buckets);

}  // namespace kinfolk
