// ReRoPE and Leaky ReRoPE: rotary positions that are rectified beyond a window (Su Jianlin 2023).
#pragma once
#include <limits>

#include "kinfolk/nn/qk/rope.h"

namespace kinfolk {

/// RoPE with relative position r instead of t = i - j:
/// r = t for |t| < w, else sign(t) (w + (|t| - w)/k).
/// As bands of distance: near, both sides are turned by their positions; far, the query by i/k + w (1 - 1/k) and the
/// key by j/k; back (t <= -w, in patterns that see the future), the query by i/k - w (1 - 1/k). No key depends on its
/// query, so a cache keeps the far keys of all tokens and the near ones of the newest w.
struct RectifiedRope : QkStep {
  RectifiedRope(Rotation rotation, int64_t window, double leak, const Heads& heads)
      : rotation_(std::move(rotation)),
        window_(window),
        leak_(leak),
        far_(heads.horizon < 0 || heads.horizon > window),
        back_(!heads.causal) {}
  std::vector<QueryBand> queries(const QueryBand& band, const Tensor& at) override;
  std::vector<KeyBand> keys(const KeyBand& band, const Tensor& at) override;

 private:
  Rotation rotation_;
  int64_t window_;
  double leak_;      ///< 1/k
  bool far_, back_;  ///< the pattern may show such distances
};

/// ReRoPE: k is infinite, all far keys stand at distance w and are not turned.
struct Rerope : RectifiedRope {
  struct Options : RotationOptions {
    int64_t window = 256;
    template <class V>
    void fields(V&& visit) {
      RotationOptions::fields(visit);
      visit("window", window, "distances below it are true, those from it on count as it", at_least(1));
    }
  };
  Rerope(const Options& o, const Context& context) : RectifiedRope(o.rotation(context), o.window, 0, context.heads) {}
};

/// Leaky ReRoPE: beyond w, distances grow by 1/k a token. Training with k < 1 and testing with RoPE is the inverse
/// form.
struct LeakyRerope : RectifiedRope {
  struct Options : RotationOptions {
    int64_t window = 256;
    double k = 16;
    template <class V>
    void fields(V&& visit) {
      RotationOptions::fields(visit);
      visit("window", window, "distances below it are true", at_least(1));
      visit("k", k, "beyond the window a distance grows by 1/k a token", at_least(1e-6));
    }
  };
  LeakyRerope(const Options& o, const Context& context)
      : RectifiedRope(o.rotation(context), o.window, 1 / o.k, context.heads) {}
};

}  // namespace kinfolk
