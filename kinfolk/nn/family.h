// The interfaces that every member of the family is made of.
//
// Shapes: B batch (lanes), L tokens of this call, S keys, H query heads, G key/value heads, D model width, d head
// width, V vocabulary. The batch is dim 0 of every tensor, state included.
#pragma once
#include <torch/nn/module.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "kinfolk/core/batch.h"
#include "kinfolk/core/state.h"
#include "kinfolk/nn/context.h"
#include "kinfolk/nn/image_grid.h"
#include "kinfolk/ops/attend.h"

namespace kinfolk {

/// How a mixer is asked to compute. All forms agree; `automatic` is decided by choose_form alone.
enum class Form { automatic, parallel, chunked, step };

/// One call through the model: what a layer may read, and where it may write besides its output.
struct Pass {
  const Batch& batch;
  Tensor position = {};    ///< int64 [B, L]; counts valid tokens only
  Tensor valid = {};       ///< bool [B, L]; undefined: all tokens are real
  Tensor document = {};    ///< int64 [B, L], grows by one at every border of "segment"; undefined: one document
  Tensor first = {};       ///< bool [B, L], true where a new document starts; undefined: nowhere
  State* state = nullptr;  ///< null: the sequence is whole, keep nothing
  Form form = Form::automatic;
  uint64_t seed = 0;   ///< of every random draw in this call
  uint64_t draws = 0;  ///< how many draws were made: each gets its own stream
  int64_t newest = 0;  ///< of a memory that keeps every key, a query meets so many newest ones; 0: all
  std::map<std::string, Tensor>* losses =
      nullptr;  ///< auxiliary losses by name (mean over valid tokens), weighted by the recipe
  std::map<std::string, Tensor>* trace = nullptr;         ///< opt-in: halting steps, attention maps
  std::vector<std::function<void()>>* updates = nullptr;  ///< run after the optimiser step: codebooks, centroids
};

/// The one place that picks a form: `step` for one token with a state, `chunked` with a state or beyond `chunk` tokens,
/// else `parallel`.
Form choose_form(const Pass& pass, int64_t length, bool has_state, int64_t chunk = 64);

/// x with entries dropped by probability p and the rest scaled by 1/(1-p); the draw comes from pass.seed alone.
Tensor dropout(const Tensor& x, double p, bool training, Pass& pass);

/// x with the rows of invalid tokens set to zero; x itself when all are valid.  x [B, L, ...]
Tensor mask_invalid(const Tensor& x, const Pass& pass);

/// Adds to the auxiliary loss of this name; nothing when the pass collects none.
void add_loss(Pass& pass, const std::string& name, const Tensor& value);

struct Traits {
  bool causal = true;      ///< output t depends on tokens <= t only
  bool streams = true;     ///< the split law holds
  bool bounded = false;    ///< state bytes do not grow
  bool relative = false;   ///< a shift of all positions changes nothing
  bool carries = false;    ///< training carries its state from step to step
  bool estimates = false;  ///< gradients are an estimate where none exists (straight-through), not the derivative
  int64_t context = 0;     ///< longest position it can take; 0: any
  std::string why_not;     ///< one sentence for what it does not do
};

/// The option of a branch that sets the bytes of its state while the width stays, for budgets of states; or why there
/// is none. `divides`: it is a number of heads, which divides the width, and more of them make the state smaller.
struct StateKnob {
  std::string option = {};
  bool divides = false;
  std::string why_not = {};
};

/// What can be done with the state of a branch or of a memory besides going on from it.
struct Keeper {
  virtual ~Keeper() = default;
  /// Takes a lane of `state` back to its first `position` tokens, as if it had read no others. Returns why that cannot
  /// be, and "" where it is done. Tensors are replaced, never written into. `newest`: Pass::newest until now.
  virtual std::string truncate(State& state, int64_t lane, int64_t position, int64_t newest) const;
  /// Bytes of memory that a state of so many lanes takes at most (State::held_bytes) in calls with Pass::newest; -1: it
  /// grows without end.
  virtual int64_t most_bytes(int64_t batch, at::TensorOptions like, int64_t newest) const = 0;
  virtual std::string keeps() const = 0;  ///< what its state holds of the past, in words
};

/// A sub-layer: attention, recurrence or feed-forward.
struct Branch : torch::nn::Module, Keeper {
  virtual Traits traits() const { return {}; }
  virtual State start(int64_t /*batch*/, at::TensorOptions /*like*/) const { return {}; }
  /// 2 x multiply-adds of its products for tokens [from, from + length) of one lane, forward.
  virtual double flops(int64_t length, int64_t from = 0) const = 0;
  /// x [B, L, D] -> [B, L, D]. Law: with one state, f(x1 ++ x2) == f(x1) ++ f(x2). Invalid tokens leave the state as it
  /// was.
  virtual Tensor forward(const Tensor& x, Pass& pass, State* state) = 0;
  /// One line for `explain`: which operator serves it, and where it is not the fused one, why.
  virtual std::string explain() const { return "torch operators"; }
  /// Which pairs its heads may meet: one pattern for all of them, or one each in turn; none: it has no pattern.
  virtual std::vector<std::shared_ptr<const Pattern>> patterns() const { return {}; }
  virtual StateKnob state_knob() const { return {}; }  ///< of a branch with a state
  int64_t most_bytes(int64_t batch, at::TensorOptions like, int64_t newest) const override;  ///< of a fresh state
  std::string keeps() const override;
};

/// A step on queries and keys before the dot product: RoPE and kin, XPOS, KeyNorm, log-n, QK bias.
/// One band in, one band out - or two, as in ReRoPE (each gets its range of distances).
struct QkStep : torch::nn::Module {
  virtual std::vector<QueryBand> queries(const QueryBand& band, const Tensor& at) = 0;  ///< at int64 [B, L]
  virtual std::vector<KeyBand> keys(const KeyBand& band, const Tensor& at) = 0;  ///< at int64 [B, S]; as many bands
  virtual bool keys_final() const { return true; }  ///< false: cache raw keys and apply the step when they are read
  virtual bool relative() const { return true; }    ///< a shift of all positions changes no score
  /// Where the keys depend on who looks at them, as with a scale that grows with the text: the stage of each query at
  /// int64 [B or 1, L], same shape, and the keys for the queries of one stage. Undefined: keys are the same for all.
  virtual Tensor stage(const Tensor& /*at*/) const { return {}; }
  virtual std::vector<KeyBand> keys_for(const KeyBand& band, const Tensor& at, int64_t /*stage*/) {
    return keys(band, at);
  }
  /// The same from the result of `keys`, where that is kept (keys_final).
  virtual KeyBand keys_again(const KeyBand& band, const Tensor& /*at*/, int64_t /*stage*/) { return band; }
};

/// The past of an attention branch, and how this call's tokens join it: rolling cache, segment, compressive, nearest
/// neighbours.
struct Fresh {
  Tensor x;     ///< [B, L, D] the branch's input
  Tensor q;     ///< [B, H, L, d] before the QkSteps
  Tensor k, v;  ///< [B, G, L, d] before the QkSteps
};
/// How a memory asks to look.
struct Look {
  bool prepared = false;          ///< the keys went through Eyes::prepare_keys
  std::vector<size_t> kept = {};  ///< which of its tensors the keys of each set are from; empty: the first
  int64_t shift = 0;              ///< Keys::at, from and until are positions plus this, so that keys before 0 can be
};
/// The eyes that an attention branch lends to its memory.
struct Eyes {
  struct KeyValue {
    Tensor k, v;
  };
  std::function<KeyValue(const Tensor& x)> project;  ///< [B, S, D] -> raw keys and values [B, G, S, d]
  /// Raw keys at int64 [B, S] as a memory may keep them: QkSteps applied when all are final, else as they are. Where
  /// the steps make bands of distance, the keys of the farthest, then those of the nearer ones (Heads::near).
  std::function<std::vector<Tensor>(const Tensor& k, const Tensor& at)> prepare_keys;
  std::function<Read(const Tensor& q, std::vector<Keys> keys, Look how)>
      look;  ///< raw queries; the branch applies QkSteps, pattern and scores
  struct Constant {
    Tensor q, k, v;
  };
  /// [B, S, D] -> raw queries [B, H, S, d], keys and values, by projections that are constants: gradients reach x
  /// alone.
  std::function<Constant(const Tensor& x)> project_constant = {};
};
struct Memory : torch::nn::Module, Keeper {
  virtual Traits traits() const = 0;
  virtual State start(int64_t batch, at::TensorOptions like) const = 0;
  /// Reads past and present with the queries of this call, and stores the call into `state` (null: nothing is kept).
  virtual Read meet(const Fresh& fresh, const Eyes& eyes, Pass& pass, State* state) = 0;
  virtual int64_t reach() const { return -1; }  ///< keys that a query may meet at most; -1: no limit of its own
  virtual int64_t seen(int64_t position) const { return position + 1; }  ///< keys that this position may meet
  int64_t most_bytes(int64_t batch, at::TensorOptions like, int64_t newest) const override;  ///< of a fresh state
  std::string keeps() const override;
  /// Of what it computes besides the looking, for tokens [from, from + length) of one lane (Branch::flops).
  virtual double flops(int64_t /*length*/, int64_t /*from*/) const { return 0; }
  virtual std::string explain() const { return ""; }  ///< what `explain` says of it
};

/// How a branch output meets the stream: add, GRU gate. (Reversible is a Depth.)
struct Residual : torch::nn::Module {
  virtual Tensor meet(const Tensor& x, const Tensor& branch) = 0;
};

using ReadOut = std::function<Tensor(const Tensor& x)>;  ///< [B, L, D] -> logits, for exits

class Layer;  // nn/layer.h

/// How many times which layer runs: once each, shared until ACT halts, early exit, reversible.
struct Depth : torch::nn::Module {
  virtual Traits traits() const { return {}; }
  virtual State start(const std::vector<std::shared_ptr<Layer>>& layers, int64_t batch,
                      at::TensorOptions like) const = 0;
  virtual double flops(const std::vector<std::shared_ptr<Layer>>& layers, int64_t length, int64_t from) const = 0;
  virtual Tensor run(Tensor x, const std::vector<std::shared_ptr<Layer>>& layers, const ReadOut& read_out, Pass& pass,
                     State* state) = 0;
};

struct Input : torch::nn::Module {
  virtual Traits traits() const { return {}; }
  virtual Tensor embed(Pass& pass) = 0;       ///< [B, L, D]
  virtual Tensor tied() const { return {}; }  ///< [V, D] for a head that shares the table; undefined: none
  /// Of the images it reads; none: it reads any sequence.
  virtual ImageGrid grid() const { return {}; }
};

struct Head : torch::nn::Module {
  virtual Tensor read(const Tensor& x, Pass& pass) = 0;  ///< [B, L, D] -> [B, L, V] scores or log p; softmax of it is p
  virtual double flops(int64_t length) const = 0;
  virtual bool wants_store() const { return false; }  ///< true: `remember` fills a datastore before evaluation
  virtual void remember(const Tensor& /*x*/, const Tensor& /*target*/) {
  }  ///< [N, D] hidden states after the last norm, [N] ids
};

// Filled in nn/kin.cpp.
template <>
Registry<Branch>& registry<Branch>();
template <>
Registry<QkStep>& registry<QkStep>();
template <>
Registry<Memory>& registry<Memory>();
template <>
Registry<Residual>& registry<Residual>();
template <>
Registry<Depth>& registry<Depth>();
template <>
Registry<Input>& registry<Input>();
template <>
Registry<Head>& registry<Head>();

}  // namespace kinfolk
