// NTK-aware RoPE: the base grows with the length, so that fast pairs keep their turns (bloc97 2023).
#pragma once
#include "kinfolk/nn/qk/rope.h"

namespace kinfolk {

/// RoPE with other frequencies, over the r dimensions that turn:
/// plain: f'_t = f_t s^(-2t/(r-2)), the base times s^(r/(r-2)): the first pair stays, the last is interpolated by s;
/// fixed: f'_t = f_t s^(-2(t+1)/r): every pair slows down, the last one by s (Su Jianlin 2023, part 11).
struct RopeNtk : Turn {
  struct Options : RotationOptions {
    double factor = 4;
    std::string form = "plain";
    template <class V>
    void fields(V&& visit) {
      RotationOptions::fields(visit);
      visit("factor", factor, "s, how many times longer than trained", at_least(1));
      visit("form", form, "plain leaves the first pair as it was, fixed slows it too", one_of({"plain", "fixed"}));
    }
  };
  RopeNtk(const Options& options, const Context& context);
};

/// Dynamic NTK: the plain form with an s that grows with the text, and none of it while the text is no longer than
/// trained. s depends on the position of the query, never on the length of a call or on the capacity of a cache, so
/// that reading in pieces gives the same numbers: the query at i has read n = i + 1 tokens and takes
/// s = factor m - (factor - 1), m = the smallest power of two with n <= m * trained, for itself and for all the keys
/// that it meets. Keys are cached raw and turned as they are read. (transformers takes m = n / trained, the n of the
/// call, for all queries of the call, and caches keys turned with the s of their own time.)
struct RopeNtkDynamic : QkStep {
  struct Options : RotationOptions {
    double factor = 1;
    int64_t trained = 0;
    template <class V>
    void fields(V&& visit) {
      RotationOptions::fields(visit);
      visit("factor", factor, "growth of s by the trained length; 1: s is that multiple of it", at_least(1));
      visit("trained", trained, "tokens of the training sequences; 0: the size's context", at_least(0));
    }
  };
  RopeNtkDynamic(const Options& options, const Context& context);
  std::vector<QueryBand> queries(const QueryBand& band, const Tensor& at) override;
  std::vector<KeyBand> keys(const KeyBand& band, const Tensor& at) override { return keys_for(band, at, 0); }
  std::vector<KeyBand> keys_for(const KeyBand& band, const Tensor& at, int64_t stage) override;
  Tensor stage(const Tensor& at) const override;
  bool keys_final() const override { return false; }
  bool relative() const override { return false; }

 private:
  Rotation at_stage(int64_t stage) const;
  Rotation plain_;
  double factor_;
  int64_t trained_;
};

}  // namespace kinfolk
