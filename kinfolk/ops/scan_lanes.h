// What every scan over tokens shares: which tokens it takes in, where it starts anew, and the cut into chunks.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>

namespace kinfolk {
using at::Tensor;

/// Tokens that count, and borders. A token that is not valid leaves the state as it was and gives a zero row; before a
/// valid token with `first` the state is zero.
struct ScanLanes {
  Tensor valid = {};  ///< bool [B, L]; undefined: all
  Tensor first = {};  ///< bool [B, L]; undefined: nowhere
};

/// What a scan returns. `state` has the type it is computed in: float32, or double for double inputs.
struct Scanned {
  Tensor out;         ///< [B, H, L, V], in the type of v
  Tensor state = {};  ///< [B, H, K, V] after the last token
};

/// `first` kept at valid tokens only; undefined when there is none.
Tensor borders(const ScanLanes& lanes);
/// t with the rows of invalid tokens zero.  t [B, H, L, ...] or [B, H, L]
Tensor mask_heads(const Tensor& t, const ScanLanes& lanes);
/// The first n of a dimension; t itself when that is all of it, so that backward copies nothing.
Tensor first_of(const Tensor& t, int64_t dim, int64_t n);
/// The type that a scan of such inputs is computed in.
at::ScalarType scan_type(const Tensor& t);

/// Chunks of C tokens: n = ceil(L / C), the tail filled.
struct Chunks {
  int64_t length, size, count;
  Chunks(int64_t length, int64_t chunk);                ///< no longer than the sequence
  static Chunks exactly(int64_t length, int64_t size);  ///< even if the sequence is shorter
  /// [B, H, L, ...] -> [B H, n, C, ...], contiguous; the tail holds `fill`.
  Tensor cut(const Tensor& t, double fill = 0) const;
  Tensor join(const Tensor& t, int64_t batch) const;  ///< [B H, n, C, ...] -> [B, H, L, ...]
};

/// Borders inside chunks, as factors 0 or 1 of the scan's type; all undefined without borders.
struct ChunkBorders {
  Tensor same;   ///< [B H, n, C, C]: no border in (j, i], for j <= i; 0 above the diagonal
  Tensor alive;  ///< [B H, n, C, 1]: no border in the chunk up to and with this token: it sees the incoming state
  Tensor last;   ///< [B H, n, C, 1]: no border after this token: it enters the outgoing state
  Tensor whole;  ///< [B H, n, 1, 1]: no border at all: the incoming state goes on
  bool defined() const { return same.defined(); }
};
ChunkBorders chunk_borders(const Tensor& border, const Chunks& chunks, int64_t heads, at::ScalarType type);

}  // namespace kinfolk
