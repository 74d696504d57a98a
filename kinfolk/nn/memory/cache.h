// The key/value cache: every key that the pattern can still see.
#pragma once
#include "kinfolk/nn/family.h"

namespace kinfolk {

/// State, one lane each: k, v [B, G, C, d], at int64 [B, C] (position, -1: empty), document int64 [B, C]. The newest
/// keys stand at the right end; invalid tokens never enter. Where the pattern has a horizon W, C = W - 1 from the
/// start, so the bytes never change; else C is the number of tokens of the fullest lane, at most Pass::newest - 1. Keys
/// are kept with the QkSteps applied when all of them are final, else raw. Steps that turn near keys otherwise have a
/// k1 (k2, ...) besides, the near keys of the last min(C, w - 1) columns, w as Heads::near says. Gradients flow through
/// the state. Without gradients a call writes its columns behind the kept ones (cache_append.h), where room for an
/// eighth more of them and 8 is held.
struct Cache : Memory {
  struct Options {
    template <class V>
    void fields(V&&) {}
  };
  Cache(const Options&, const Context& context) : heads_(context.heads) {}
  Traits traits() const override;
  State start(int64_t batch, at::TensorOptions like) const override;
  Read meet(const Fresh& fresh, const Eyes& eyes, Pass& pass, State* state) override;
  int64_t reach() const override { return heads_.horizon; }
  std::string truncate(State& state, int64_t lane, int64_t position, int64_t newest) const override;
  int64_t most_bytes(int64_t batch, at::TensorOptions like, int64_t newest) const override;
  std::string keeps() const override;

 private:
  Heads heads_;
};

/// Positions of the call's tokens, -1 where they are not valid.  int64 [B, L]
Tensor valid_positions(const Pass& pass);
/// Documents of the call's tokens; zeros when there is one.  int64 [B, L]
Tensor documents(const Pass& pass);

}  // namespace kinfolk
