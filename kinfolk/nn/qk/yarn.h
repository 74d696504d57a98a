// YaRN: interpolation by parts, with a temperature (Peng et al. 2023).
#pragma once
#include "kinfolk/nn/qk/rope.h"

namespace kinfolk {

/// RoPE with f'_t = (1 - g_t) f_t / s + g_t f_t, and with what turns of q and k times 0.1 ln(s) + 1. Pairs that make
/// many turns within the trained length L stay (g = 1), those that make few are interpolated (g = 0):
/// paper: g_t = clip((r_t - alpha) / (beta - alpha), 0, 1), r_t = L f_t / (2 pi) turns;
/// code: g falls evenly over the pairs from the one with beta turns, rounded down, to the one with alpha, rounded up,
/// as the authors' program and transformers; code_unrounded: the same from and to the exact, fractional pairs.
/// alpha = 1, beta = 4, ramp = "paper" without temperature is the scaling of Llama 3.
struct Yarn : Turn {
  struct Options : RotationOptions {
    double factor = 4;
    int64_t trained = 0;
    double alpha = 1, beta = 32;
    std::string ramp = "paper";
    bool temperature = true;
    template <class V>
    void fields(V&& visit) {
      RotationOptions::fields(visit);
      visit("factor", factor, "s, how many times longer than trained", at_least(1));
      visit("trained", trained, "L, tokens of the training sequences; 0: the size's context", at_least(0));
      visit("alpha", alpha, "pairs with fewer turns within L are interpolated", at_least(1e-6));
      visit("beta", beta, "pairs with more turns stay", at_least(1e-6));
      visit("ramp", ramp, "between alpha and beta: even in turns, or in the number of the pair",
            one_of({"paper", "code", "code_unrounded"}));
      visit("temperature", temperature, "multiply queries and keys by 0.1 ln(s) + 1");
    }
  };
  Yarn(const Options& options, const Context& context);
};

/// The first and the last pair, of P, between which the ramp of the code runs; may be fractions.
std::pair<double, double> yarn_bounds(double alpha, double beta, double base, int64_t pairs, int64_t trained,
                                      bool rounded);

}  // namespace kinfolk
