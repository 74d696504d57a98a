// scan_selective over channels: a diagonal recurrence whose step, input and output weights change with every token.
#pragma once
#include <cstdint>

namespace kinfolk::kernels {

constexpr int64_t kSelectiveTokens = 32;  ///< between two states that are kept for the backward pass

/// L tokens of one lane, E channels (a multiple of 16) with N states each.
struct SelectiveSizes {
  int64_t tokens, channels, states;
  bool softplus;  ///< d = softplus(delta + bias), else delta + bias
  bool zoh;       ///< u = (exp(d A) - 1) / A B x, else d B x
};

/// Rows of one lane: the last axis is dense, `row` floats lie from token to token.
struct SelectiveRows {
  const float* data;
  int64_t row;
  const float* at(int64_t token) const { return data + token * row; }
};

constexpr uint8_t kSelectiveSkip = 1, kSelectiveFirst = 2;

/// h_t = exp(d_t A) h_{t-1} + u_t, out_t = (C_t h_t + skip x_t) silu(z_t)   (Gu and Dao 2023, arXiv 2312.00752)
struct SelectiveForward {
  SelectiveRows x, delta, z;     ///< [L, E]; z.data may be null: no gate
  SelectiveRows b, c;            ///< [L, N]
  const float *a, *skip, *bias;  ///< [E, N], [E], [E]
  const uint8_t* marks;  ///< [L] kSelectiveSkip: no such token; kSelectiveFirst: the state is zero before it; or null
  float* state;          ///< [E, N]: before the first token, then after the last
  float* out;            ///< [L, E]
  float* kept;           ///< [ceil(L / kSelectiveTokens), E N]: states, in the kernel's own order; or null
};

struct SelectiveBackward {
  SelectiveForward given;                 ///< as it was run; state and out are not read
  const float* grad_out;                  ///< [L, E]
  float* grad_state;                      ///< [E, N]: of the last state, then of the first
  float *grad_x, *grad_delta, *grad_z;    ///< [L, E]; grad_z may be null
  float *grad_a, *grad_skip, *grad_bias;  ///< [E, N], [E], [E]: added to
  float *grad_b, *grad_c;                 ///< [L, N]: the part of these channels; zero before
};

/// Floats of scratch memory (64-byte aligned) for channels [from, until), both multiples of 16.
int64_t scan_selective_scratch(const SelectiveSizes& sizes, int64_t from, int64_t until);
void scan_selective_forward(const SelectiveSizes& sizes, const SelectiveForward& lane, int64_t from, int64_t until,
                            float* scratch);
void scan_selective_backward(const SelectiveSizes& sizes, const SelectiveBackward& lane, int64_t from, int64_t until,
                             float* scratch);

}  // namespace kinfolk::kernels
