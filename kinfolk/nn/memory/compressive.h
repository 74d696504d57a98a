// The Compressive Transformer's memory (Rae et al. 2019): what leaves a FIFO of inputs is compressed, not forgotten.
#pragma once
#include "kinfolk/nn/family.h"
#include "kinfolk/nn/memory/compress_loss.h"
#include "kinfolk/nn/memory/compression.h"

namespace kinfolk {

/// Segments begin at the multiples of N = `segment` in each lane's own count of tokens. When one that ends at s is
/// complete, the oldest inputs of the FIFO beyond m_m = `memory` leave it, as many as are a multiple of c = `rate`, and
/// are compressed together into slots; the oldest slots beyond m_cm = `slots` are forgotten. Where c divides N and m_m
/// these are the N oldest, as published; else up to c - 1 more wait in the FIFO. So the tokens before
///   D(s) = c floor((s - m_m) / c), at least 0,
/// have left when s begins, and slot n is of the tokens [c n, c n + c).
/// A query at i in the segment that begins at s sees the newest m_cm slots of the tokens before D(s), the inputs of
/// [D(s), s), and the own segment up to i, in one softmax.
/// Positions:
///   places "sequence": those in the sequence [slots, FIFO, segment], as in the article: distances up to
///                      m_cm + m_m + N, other ones from segment to segment;
///   places "text":     a slot stands in the place of its newest token (most_used: of its own one): distances in the
///                      text, up to c m_cm + m_m + N, and work for as many of them.
/// Gradients: keys before s come from detached inputs and slots, keys from s on are live, as in Segment. The loss of
/// the task gives none to the compression; the loss "compression" reaches the compression and its decoder alone. It is
/// the sum over completed segments of N times the size of
///   "attention":    attn(h, old) - attn(h, slots), attn by content alone (read_by_content), h the segment's inputs,
///   "autoencoding": old - g(slots), g a Decoder,
/// over the number of tokens, that is, the mean over tokens of their segment's; layers add up. A compression without
/// parameters reports it all the same. Where nothing collects losses it is not computed.
/// Usage (compression "most_used"): the attention that an input received while in the FIFO, from queries that share
/// theirs among FIFO and own segment; slots have no part in it, so that all segments of a call are read at once. It is
/// the gradient of that read by the values: it costs each call one more read and its backward pass (about 3 reads, of
/// FIFO and segment alone), and no matrix of queries and keys.
/// Documents: a slot that is made of tokens of several documents is seen by nobody.
/// State: inputs x [B, C, D], at, document int64 [B, C] (and usage [B, C]), C = m_m + N - 1 or up to c - 1 more; slot
/// [B, m_cm, D], slot_at, slot_document, slot_first, slot_last int64 [B, m_cm]: the tokens it is made of. Newest at the
/// right end, -1: empty; all allocated at the start. Inputs and slots are projected anew in each call.
/// `--state-budget` makes m_m and m_cm equal.
/// Submodules: compress; decode where the loss is "autoencoding".
struct Compressive : Memory {
  struct Options {
    int64_t segment = 128, memory = 128, slots = 128, rate = 4;
    Spec compress = "conv";
    std::string loss = "attention", measure = "l2", places = "sequence";
    template <class V>
    void fields(V&& visit) {
      visit("segment", segment, "tokens of a segment N", at_least(1));
      visit("memory", memory, "inputs kept as they are m_m", at_least(1));
      visit("slots", slots, "compressed ones m_cm", at_least(1));
      visit("rate", rate, "inputs that become a slot c", at_least(1));
      visit("compress", compress, "how: max_pool, mean_pool, conv, dilated_conv, most_used");
      visit("loss", loss,
            "what trains the compression: what the segment reads of slots instead of inputs, or the "
            "inputs made of slots again",
            one_of({"attention", "autoencoding", "none"}));
      visit("measure", measure, "of the difference: norm as published, its square, or mean square",
            one_of({"l2", "square", "mean_square"}));
      visit("places", places, "positions of slots: in the sequence of slots, FIFO and segment, or in the text",
            one_of({"sequence", "text"}));
    }
  };
  Compressive(const Options& options, const Context& context);
  Traits traits() const override;
  State start(int64_t batch, at::TensorOptions like) const override;
  Read meet(const Fresh& fresh, const Eyes& eyes, Pass& pass, State* state) override;
  int64_t reach() const override;
  int64_t seen(int64_t position) const override;
  std::string truncate(State& state, int64_t lane, int64_t position, int64_t newest) const override;
  std::string keeps() const override;
  double flops(int64_t length, int64_t from) const override;
  std::string explain() const override;

  const Options& options() const { return options_; }
  int64_t left(int64_t begin) const;  ///< D of a segment that begins there: the tokens before have left the FIFO
  /// Names of the state's tensors.
  static constexpr auto kInputs = "x", kAt = "at", kDocument = "document", kUsage = "usage", kSlots = "slot",
                        kSlotAt = "slot_at", kSlotDocument = "slot_document", kSlotFirst = "slot_first",
                        kSlotLast = "slot_last";

  std::shared_ptr<Compression> compression;
  std::shared_ptr<Decoder> decoder;

 private:
  struct Rows;
  struct Made;
  Tensor left(const Tensor& begin) const;  ///< the same for each
  Made make_slots(const Rows& rows, const Tensor& fresh_at) const;
  /// The slots [B, S, D], newest at the right end, as the queries of segments that begin at int64 [B, L] (-1: invalid)
  /// see them, one set a segment or one for all. tokens int64 [B]: how many each lane has read.
  std::vector<Keys> slot_keys(const Tensor& slots, const Tensor& at, const Tensor& document, const Tensor& tokens,
                              const Tensor& begin, const Eyes& eyes) const;
  Tensor loss_of(const Made& made, const Rows& rows, const Eyes& eyes, bool documents) const;

  Options options_;
  Heads heads_;
  int64_t width_, depth_, capacity_;
};

}  // namespace kinfolk
