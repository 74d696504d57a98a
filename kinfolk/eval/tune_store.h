// Which k, temperature and lambda serve best with a datastore on a text.
#pragma once
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "kinfolk/eval/perplexity.h"
#include "kinfolk/nn/retrieve/search.h"

namespace kinfolk {

struct TuneOptions {
  int64_t tokens = 8192;                                         ///< scored at most
  std::vector<int64_t> ks = {1, 2, 4, 8, 16, 32, 64, 128, 256};  ///< tried; those above the store's size count as it
  std::vector<double> lambdas = {0.02, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9};
  std::vector<double> temperatures;  ///< empty: the mean distance to the nearest entry times 2^-6, 2^-5 ... 2^2
  std::string metric = "squared";    ///< or l2
  std::function<void(double share)> progress;
};

struct TunePoint {
  int64_t k = 0;
  double temperature = 0, lambda = 0;
  double bits = 0;  ///< per byte
};

struct TuneResult {
  double before = 0;  ///< bits per byte of the wrapped head alone
  int64_t tokens = 0;
  double distance = 0;           ///< mean distance to the nearest entry
  std::vector<TunePoint> tried;  ///< all combinations
  TunePoint best;
  double gain_error = 0;  ///< standard error over windows of what the best gains; NaN of one window
  /// For each value of one of them the best of the others.
  std::vector<TunePoint> by_lambda() const;
  std::vector<TunePoint> by_k() const;
  std::vector<TunePoint> by_temperature() const;
};

/// Reads windows of the model's context, evenly spaced in the text, each from nothing; looks each position up once,
/// its own entry excluded where the text is in the store, and tries all combinations on what was found. The model's
/// head scores without its store. Throws Error for a text that is too short.
TuneResult tune_store(Model& model, const Datastore& store, const Search& search, const Bytes& text,
                      const TuneOptions& options);

}  // namespace kinfolk
