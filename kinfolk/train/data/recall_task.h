// What a task of recall is: its kind and its options.
#pragma once
#include <cstdint>
#include <string>

#include "kinfolk/core/options.h"

namespace kinfolk {

/// Multi-query associative recall (Arora et al. 2023, arXiv 2312.04927): `pairs` of key and value, then each key once
/// more, at a place drawn by weights a (s + 1)^(a - 1); its value is wanted there.
struct MqarOptions {
  int64_t vocabulary = 8192, length = 64, pairs = 4;
  double power = 0.01;
  bool fill = false;
  int64_t seed = 1, examples = 0;
  template <class V>
  void fields(V&& visit) {
    visit("vocabulary", vocabulary, "token ids: the lower half keys, the upper half values; more than length",
          at_least(4));
    visit("length", length, "tokens of an example, even, at least 4 times the pairs", at_least(4));
    visit("pairs", pairs, "keys with their values, each asked for once", at_least(1));
    visit("power", power, "a of the weights a (s + 1)^(a - 1) of places; 1: all alike", between(1e-6, 1));
    visit("fill", fill, "random tokens instead of zeros between the keys");
    visit("seed", seed, "of the examples", at_least(0));
    visit("examples", examples, "different ones to train on; 0: each is new", at_least(0));
  }
};

/// Selective copying (Gu and Dao 2023, arXiv 2312.00752): `data` tokens among noise, to be said in order at the end.
struct SelectiveCopyOptions {
  int64_t vocabulary = 16, data = 16, noise = 224;
  int64_t seed = 1, examples = 0;
  template <class V>
  void fields(V&& visit) {
    visit("vocabulary", vocabulary, "token ids, noise and the marker among them", at_least(3));
    visit("data", data, "tokens to be copied; as many markers follow", at_least(1));
    visit("noise", noise, "tokens among which they stand", at_least(0));
    visit("seed", seed, "of the examples", at_least(0));
    visit("examples", examples, "different ones to train on; 0: each is new", at_least(0));
  }
};

/// Induction heads (Gu and Dao 2023): the token that followed the marker before, when the marker comes again at the
/// end.
struct InductionOptions {
  int64_t vocabulary = 16, length = 256;
  int64_t seed = 1, examples = 0;
  template <class V>
  void fields(V&& visit) {
    visit("vocabulary", vocabulary, "token ids, the marker among them", at_least(2));
    visit("length", length, "tokens of an example", at_least(4));
    visit("seed", seed, "of the examples", at_least(0));
    visit("examples", examples, "different ones to train on; 0: each is new", at_least(0));
  }
};

/// Recall at a distance: `pairs` of key and value, then noise, then each key once more in another order: its value is
/// wanted there and follows. What a memory has let go in between cannot be answered.
struct DistanceOptions {
  int64_t vocabulary = 64, pairs = 4, distance = 256;
  bool varied = false;
  int64_t seed = 1, examples = 0;
  template <class V>
  void fields(V&& visit) {
    visit("vocabulary", vocabulary, "token ids: a quarter noise, a quarter keys, half values; divisible by 4",
          at_least(8));
    visit("pairs", pairs, "keys with their values, each asked for once", at_least(1));
    visit("distance", distance, "tokens of noise between the pairs and the questions", at_least(1));
    visit("varied", varied, "the pairs may come later, at distances spread evenly by their logarithm from 1 on");
    visit("seed", seed, "of the examples", at_least(0));
    visit("examples", examples, "different ones to train on; 0: each is new", at_least(0));
  }
};

struct RecallTask {
  std::string kind;  ///< "mqar", "selective_copy", "induction", "distance"; empty: none
  MqarOptions mqar = {};
  SelectiveCopyOptions copy = {};
  InductionOptions induction = {};
  DistanceOptions distance = {};

  bool any() const { return !kind.empty(); }
  /// What all kinds have, of the options of this one.
  template <class Read>
  int64_t common(Read&& read) const {
    if (kind == "mqar") return read(mqar);
    if (kind == "selective_copy") return read(copy);
    return kind == "induction" ? read(induction) : read(distance);
  }
  int64_t vocabulary() const {
    return common([](const auto& o) { return o.vocabulary; });
  }
  int64_t seed() const {
    return common([](const auto& o) { return o.seed; });
  }
  int64_t examples() const {
    return common([](const auto& o) { return o.examples; });
  }
  int64_t length() const {
    if (kind == "mqar") return mqar.length;
    if (kind == "selective_copy") return copy.noise + 2 * copy.data;
    return kind == "induction" ? induction.length : 4 * distance.pairs + distance.distance;
  }
  /// Values wanted in an example.
  int64_t answers() const {
    if (kind == "mqar") return mqar.pairs;
    if (kind == "selective_copy") return copy.data;
    return kind == "induction" ? 1 : distance.pairs;
  }
  std::string words() const;  ///< "recall:mqar,vocabulary=8192,...": all options, as `read_recall` reads them
};

}  // namespace kinfolk
