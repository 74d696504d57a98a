#include "kinfolk/eval/bench_scan_kinds.h"

#include "kinfolk/ops/scan_decay.h"
#include "kinfolk/ops/scan_delta.h"
#include "kinfolk/ops/scan_elementwise.h"
#include "kinfolk/ops/scan_selective.h"
#include "kinfolk/ops/short_conv.h"

namespace kinfolk {
namespace {

constexpr int64_t kHeads = 8, kWidth = 64, kChunk = 64, kChannels = 1024, kStates = 16;
constexpr double kScale = 0.125;

Tensor heads(int64_t length) { return at::randn({1, kHeads, length, kWidth}); }
/// Logarithms of decays, -0.1 in the mean.
Tensor decays(at::IntArrayRef sizes) { return at::rand(sizes) * -0.2; }

Tensors decay_inputs(int64_t length, const char* gate) {
  Tensors in{heads(length), heads(length), heads(length)};
  const std::string kind = gate;
  if (kind == "head") in.push_back(decays({kHeads}));
  if (kind == "token") in.push_back(decays({1, kHeads, length}));
  if (kind == "channel") in.push_back(decays({1, kHeads, length, kWidth}));
  return in;
}
DecayScan decay_of(const Tensors& in) {
  DecayScan scan{in[0], in[1], in[2]};
  scan.scale = kScale;
  if (in.size() > 3) scan.gate.key = in[3], scan.gate.log = true;
  return scan;
}

/// Decays of value channels, and with `keys` of key channels too: a gate of rank one.
Tensors value_gate_inputs(int64_t length, bool keys) {
  Tensors in{heads(length), heads(length), heads(length), decays({1, kHeads, length, kWidth})};
  if (keys) in.push_back(decays({1, kHeads, length, kWidth}));
  return in;
}
DecayScan value_gate_of(const Tensors& in, bool plain = false) {
  DecayScan scan{in[0], in[1], in[2]};
  scan.scale = kScale, scan.plain = plain;
  scan.gate.value = in[3], scan.gate.log = true;
  if (in.size() > 4) scan.gate.key = in[4];
  return scan;
}

Tensors element_inputs(int64_t length) { return {at::randn({1, length, kChannels}), at::rand({1, length, kChannels})}; }
ElementScan element_of(const Tensors& in, bool plain = false) {
  ElementScan scan{in[0], in[1]};
  scan.plain = plain;
  return scan;
}
Tensor element_steps(const Tensors& in) {
  Tensors out;
  Tensor h = at::zeros({1, kChannels}, in[0].options());
  for (int64_t t = 0; t < in[0].size(1); t++) {
    h = in[1].select(1, t) * h + in[0].select(1, t);
    out.push_back(h);
  }
  return at::stack(out, 1);
}

/// A good plain form of one decay a token or less: one loop over chunks, everything else in products of all chunks and
/// exponentials of cumulated logarithms.
Tensor torch_chunk(const Tensors& in) {
  const int64_t length = in[0].size(2), n = (length + kChunk - 1) / kChunk, more = n * kChunk - length;
  Tensor gate = at::zeros({1, kHeads, length});
  if (in.size() > 3) gate = in[3].dim() == 1 ? in[3].view({1, -1, 1}).expand({1, kHeads, length}) : in[3];
  const auto cut = [&](const Tensor& t) {
    const Tensor whole = more == 0      ? t
                         : t.dim() == 4 ? at::constant_pad_nd(t, {0, 0, 0, more})
                                        : at::constant_pad_nd(t, {0, more});
    return whole.unflatten(2, {n, kChunk});
  };
  const Tensor q = cut(in[0] * kScale), k = cut(in[1]), v = cut(in[2]), c = cut(gate).cumsum(-1);  // [B, H, n, C, d]
  const Tensor upper = at::ones({kChunk, kChunk}, at::kBool).triu(1);
  const Tensor decay = (c.unsqueeze(-1) - c.unsqueeze(-2)).masked_fill(upper, -INFINITY).exp();
  const Tensor inner = at::matmul(at::matmul(q, k.transpose(-1, -2)) * decay, v);
  const Tensor seen = q * c.exp().unsqueeze(-1), last = c.narrow(-1, kChunk - 1, 1);
  const Tensor written = at::matmul((k * (last - c).exp().unsqueeze(-1)).transpose(-1, -2), v);
  const Tensors news = written.unbind(2), whole = last.exp().unsqueeze(-1).unbind(2);
  Tensors states;
  Tensor state = at::zeros_like(news[0]);
  for (size_t i = 0; i < news.size(); ++i) {
    states.push_back(state);
    state = whole[i] * state + news[i];
  }
  return (inner + at::matmul(seen, at::stack(states, 2))).flatten(2, 3).narrow(2, 0, length);
}

Tensors delta_inputs(int64_t length, bool gated) {
  const Tensor k = heads(length);
  Tensors in{heads(length), k / k.norm(2, -1, true), heads(length), at::rand({1, kHeads, length})};
  if (gated) in.push_back(decays({1, kHeads, length}));
  return in;
}
DeltaScan delta_of(const Tensors& in, bool plain = false) {
  DeltaScan scan{in[0], in[1], in[2], in[3], {}, kScale};
  if (in.size() > 4) scan.log_decay = in[4];
  scan.plain = plain;
  return scan;
}

Tensors selective_inputs(int64_t length) {
  const int64_t e = kChannels, n = kStates;
  return {at::randn({1, length, e}), at::randn({1, length, e}) - 2,
          -at::rand({e, n}) * 4,     at::randn({1, length, n}),
          at::randn({1, length, n}), at::randn({e}),
          at::randn({1, length, e}), at::randn({e})};
}
SelectiveScan selective_of(const Tensors& in, bool plain = false) {
  SelectiveScan scan{in[0], in[1], in[2], in[3], in[4], in[5], in[6], in[7]};
  scan.plain = plain;
  return scan;
}

Tensors conv_inputs(int64_t length) {
  return {at::randn({1, length, kChannels}), at::randn({kChannels, 4}), at::randn({kChannels})};
}
ShortConv conv_of(const Tensors& in, bool plain = false) {
  ShortConv conv{in[0], in[1], in[2], {}, true};
  conv.plain = plain;
  return conv;
}

}  // namespace

const std::vector<ScanKind>& scan_kinds() {
  static const auto all = [] {
    std::vector<ScanKind> out;
    for (const char* gate : {"none", "head", "token", "channel"}) {
      ScanKind kind;
      const std::string word = gate;
      const bool channel = word == "channel";
      kind.name = word == "none" ? "scan_decay, no decay" : "scan_decay, by " + word;
      kind.inputs = [gate](int64_t length) { return decay_inputs(length, gate); };
      kind.ours = [](const Tensors& in) { return scan_decay(decay_of(in), kChunk).out; };
      kind.steps = [](const Tensors& in) { return scan_decay_steps(decay_of(in)).out; };
      kind.plain = torch_chunk, kind.plain_name = "torch, in chunks";
      kind.attention = Goal{15}, kind.plain_forward = Goal{2.5}, kind.plain_both = Goal{5};
      if (channel) {
        kind.plain = [](const Tensors& in) {
          DecayScan scan = decay_of(in);
          scan.plain = true;
          return scan_decay(scan, kChunk).out;
        };
      } else {
        kind.forward_flops = kHeads * (4.0 * kWidth * kWidth + 2.0 * kChunk * kWidth);
      }
      out.push_back(kind);
    }
    for (const bool keys : {false, true}) {
      ScanKind kind;
      kind.name = keys ? "scan_decay, rank one" : "scan_decay, by value channel";
      kind.inputs = [keys](int64_t length) { return value_gate_inputs(length, keys); };
      kind.ours = [](const Tensors& in) { return scan_decay(value_gate_of(in), kChunk).out; };
      kind.plain = [](const Tensors& in) { return scan_decay(value_gate_of(in, true), kChunk).out; };
      kind.steps = [](const Tensors& in) { return scan_decay_steps(value_gate_of(in)).out; };
      kind.plain_name = "torch, in chunks", kind.attention = Goal{15};
      kind.plain_forward = Goal{2.5}, kind.plain_both = Goal{5};
      out.push_back(kind);
    }
    ScanKind elements{"scan_elementwise",
                      element_inputs,
                      [](const Tensors& in) { return scan_elementwise(element_of(in)).out; },
                      [](const Tensors& in) { return scan_elementwise(element_of(in, true)).out; },
                      element_steps,
                      "torch, in chunks"};
    out.push_back(elements);
    for (const bool gated : {false, true}) {
      ScanKind kind;
      kind.name = gated ? "scan_delta, gated" : "scan_delta";
      kind.inputs = [gated](int64_t length) { return delta_inputs(length, gated); };
      kind.ours = [](const Tensors& in) { return scan_delta(delta_of(in), kChunk).out; };
      kind.plain = [](const Tensors& in) { return scan_delta(delta_of(in, true), kChunk).out; };
      kind.steps = [](const Tensors& in) { return scan_delta_steps(delta_of(in)).out; };
      kind.plain_name = "torch, in chunks", kind.attention = Goal{10};
      out.push_back(kind);
    }
    ScanKind selective{"scan_selective",
                       selective_inputs,
                       [](const Tensors& in) { return scan_selective(selective_of(in), kChunk).out; },
                       [](const Tensors& in) { return scan_selective(selective_of(in, true), 16).out; },
                       [](const Tensors& in) { return scan_selective_steps(selective_of(in)).out; },
                       "torch, in chunks"};
    out.push_back(selective);
    ScanKind conv{"short_conv",
                  conv_inputs,
                  [](const Tensors& in) { return short_conv(conv_of(in)).out; },
                  [](const Tensors& in) { return short_conv(conv_of(in, true)).out; },
                  {},
                  "torch"};
    out.push_back(conv);
    return out;
  }();
  return all;
}

}  // namespace kinfolk
