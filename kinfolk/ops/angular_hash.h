// Buckets of like directions: locality-sensitive hashing by random rotations.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>

#include "kinfolk/ops/attend_groups.h"

namespace kinfolk {

/// h(x) = argmax [x R; -x R] of n buckets, R [d, n/2] random (Andoni et al. 2015; Kitaev et al. 2020). rotations
/// [H, R, F, d, m]: n <= 2m takes the first n/2 columns of the first of F factors. A larger n is a multiple of 2m: the
/// bucket is h1 + 2m h2, the second hash by the first n/4m columns of the second factor, so that the work grows no
/// further.
/// x [B, H, L, d] -> int64 [B, H, R, L], 0 for tokens of no sequence. buckets(tokens): n for a sequence of so many, an
/// even number. No gradient.
Tensor angular_hash(const Tensor& x, const Tensor& rotations, const Sequences& sequences,
                    const std::function<int64_t(int64_t)>& buckets);

}  // namespace kinfolk
