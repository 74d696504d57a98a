// Quantised keys: codes, what is summed by code, and attention to those sums.
#pragma once
#include "kinfolk/ops/attend.h"

namespace kinfolk {

/// The codeword nearest to each key, of equally near ones the first: argmin_s |k - C_s|^2. k [B, H, L, d], codebook C
/// [H, S, d] -> int64 [B, H, L]. No gradient; computed in the type of the keys whatever autocast says.
Tensor nearest_code(const Tensor& k, const Tensor& codebook);

/// C_z [B, H, L, d] for codes z [B, H, L].
Tensor codewords(const Tensor& codebook, const Tensor& code);

/// The value of `quantised` with the gradient of k (straight-through).
Tensor straight_through(const Tensor& k, const Tensor& quantised);

/// The keys of each code: how many [B, H, S], int64, and the mean of their values [B, H, S, e].
struct CodeSums {
  Tensor count, mean;
};

/// sums, or none for lanes without `keep` bool [B], and the tokens with `taken` bool [B, n]. code [B, H, n], v
/// [B, H, n, e]. A mean moves by what comes in, so that endless sums lose no digits. Differentiable in mean and v.
CodeSums add_codes(const CodeSums& sums, const Tensor& keep, const Tensor& code, const Tensor& v, const Tensor& taken);

/// Softmax attention to all keys behind the sums, each as its codeword: sum_s n_s exp(q . C_s) mean_s / sum_s n_s
/// exp(q . C_s). q [B, H, n, d]; queries without `seen` bool [B, n] see nothing. Differentiable in q and mean.
Read read_codes(const Tensor& q, const Tensor& codebook, const CodeSums& sums, const Tensor& seen);

/// How many keys each codeword has [H, S] and their sums [H, S, d], of valid tokens (bool [B, L]; undefined: all).
struct CodeStatistics {
  Tensor count, sum;
};
CodeStatistics code_statistics(const Tensor& k, const Tensor& code, int64_t codes, const Tensor& valid);

/// n' = decay n + (1 - decay) count, m' = decay m + (1 - decay) sum, in place (van den Oord et al. 2017).
void move_codes(Tensor& count, Tensor& sum, const CodeStatistics& of_call, double decay);

/// The codebook m / max(n, least), [H, S, d].
Tensor codebook_of(const Tensor& count, const Tensor& sum, double least = 0.01);

}  // namespace kinfolk
