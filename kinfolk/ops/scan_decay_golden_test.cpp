// scan_decay against the golden rows that it is the core of: values, states, gradients, pieces, every chunk and form.
#include <gtest/gtest.h>

#include "kinfolk/ops/scan_decay.h"
#include "kinfolk/reference/decay.h"
#include "kinfolk/reference/scan_checks.h"

namespace kinfolk {
namespace {
using golden::Case;
using reference::Tensors;

double scale_of(const Case& one, int64_t keys) {
  if (!one.config.contains("scale")) return 1;
  const auto& scale = one.config["scale"];
  return scale.is_string() ? 1 / std::sqrt(static_cast<double>(keys)) : scale.get<double>();
}

/// Both in [B, H, L, ...]: parts of the tokens [from, from + n).
DecayScan part_of(const DecayScan& s, int64_t from, int64_t n) {
  DecayScan part = s;
  for (Tensor* t : {&part.q, &part.k, &part.v, &part.gate.key, &part.gate.value})
    if (t->defined() && t->dim() > 1) *t = t->narrow(2, from, n);
  return part;
}

/// chunk 0: token by token. The states after each piece go to `states`.
Scanned in_pieces(const DecayScan& s, const std::vector<int64_t>& pieces, int64_t chunk, Tensors* states = nullptr) {
  Tensors out;
  Scanned done;
  Tensor state = s.state;
  int64_t from = 0;
  for (int64_t n : pieces) {
    DecayScan part = part_of(s, from, n);
    part.state = state;
    done = chunk > 0 ? scan_decay(part, chunk) : scan_decay_steps(part);
    out.push_back(done.out), state = done.state;
    if (states) states->push_back(state);
    from += n;
  }
  return {at::cat(out, 2), state};
}

/// A row: the names of its inputs and outputs, how they become a scan, and how its output becomes the row's.
struct Row {
  std::string name;
  std::function<std::vector<std::string>(const Case&)> in;
  std::function<DecayScan(const Case&, const Tensors&)> scan;
  std::string out = "o";
  std::function<Tensor(const Case&, const Tensors&, const Tensor&)> finish = {};  ///< default: the scan's output
  std::function<Tensor(const Tensor&)> state = {};                                ///< default: the scan's state
  std::function<reference::Decayed(const Case&, const Tensors&)> loops = {};      ///< the article's own loops
};

void expect_row(const Row& row) {
  int streamed = 0;
  for (const auto& one : golden::cases("recurrent/" + row.name)) {
    const auto in = row.in(one);
    const std::vector<std::string> out{row.out, "final_state"};
    const auto outputs = [&](const Tensors& t, const Scanned& done) {
      return Tensors{row.finish ? row.finish(one, t, done.out) : done.out,
                     row.state ? row.state(done.state) : done.state};
    };
    for (const auto type : {at::kFloat, at::kDouble}) {
      for (const bool cut : {false, true}) {
        if (cut && !one.config.contains("pieces")) continue;
        for (int64_t chunk : {0, 1, 7, 16, 64, 1000}) {
          const auto f = [&](const Tensors& t) {
            const DecayScan s = row.scan(one, t);
            const int64_t length = s.q.size(2);
            return outputs(t, in_pieces(s, cut ? reference::pieces(one, length) : std::vector<int64_t>{length}, chunk));
          };
          reference::expect_golden(one, in, out, f, type, text(row.name, " chunk ", chunk, " cut ", cut));
        }
      }
    }
    if (one.config.contains("pieces")) {
      Tensors states, inputs;
      for (const auto& name : in) inputs.push_back(one.has(name) ? one.at(name) : Tensor());
      const auto pieces = reference::pieces(one, 0);
      in_pieces(row.scan(one, inputs), pieces, 16, &states);
      int64_t from = 0;
      for (size_t i = 0; i < pieces.size(); i++) {
        const std::string name = text("out.final_state_after_", from += pieces[i]);
        if (!one.has(name)) continue;
        golden::expect_close(row.state ? row.state(states[i]) : states[i], one.at(name), one, name);
        streamed++;
      }
    }
    if (row.loops) {
      const auto loops = [&](const Tensors& t) {
        const reference::Decayed ran = row.loops(one, t);
        return Tensors{ran.out, ran.state};
      };
      reference::expect_golden(one, in, out, loops, at::kDouble, row.name + " loops");
    }
  }
  EXPECT_GT(streamed, 0) << row.name;
}

Tensor zeros_unless(const Tensor& state, const Tensor& k, const Tensor& v) {
  return state.defined() ? state : at::zeros({k.size(0), k.size(1), k.size(3), v.size(3)}, k.options());
}

TEST(ScanDecayGolden, Retention) {
  const auto turned = [](const Case& one, const Tensor& x) {
    return one.config.contains("rotary") ? reference::retnet_rotation(x, one.config["start"].get<int64_t>()) : x;
  };
  Row row{"retention",
          [](const Case&) {
            return std::vector<std::string>{"in.q", "in.k", "in.v", "in.initial_state", "param.gamma"};
          },
          [&](const Case& one, const Tensors& t) {
            DecayScan s{turned(one, t[0]), turned(one, t[1]), t[2], t[3]};
            s.scale = scale_of(one, t[0].size(3));
            s.gate.key = t[4];
            return s;
          }};
  row.loops = [&](const Case& one, const Tensors& t) {
    return reference::retention(turned(one, t[0]), turned(one, t[1]), t[2], t[4], zeros_unless(t[3], t[1], t[2]),
                                scale_of(one, t[0].size(3)));
  };
  expect_row(row);
}

/// The gate of rows with `gate` "decay", "log" or "logit" (sigmoid(x)^(1/tau)).
void set_gate(const Case& one, const Tensor& given, DecayScan& s) {
  const std::string kind = one.config.at("gate").get<std::string>();
  const double tau = one.config.contains("tau") ? one.config["tau"].get<double>() : 1;
  s.gate.log = kind != "decay";
  s.gate.key = kind == "logit" ? at::log_sigmoid(given) / tau : given;
}
std::vector<std::string> gated_inputs(const Case& one) {
  const std::string kind = one.config.at("gate").get<std::string>();
  return {"in.q", "in.k", "in.v", "in.initial_state",
          kind == "decay" ? "in.decay"
          : kind == "log" ? "in.log_decay"
                          : "in.gate_logit"};
}
Row gated_row(const std::string& name) {
  Row row{name, gated_inputs, [](const Case& one, const Tensors& t) {
            DecayScan s{t[0], t[1], t[2], t[3]};
            s.scale = scale_of(one, t[0].size(3));
            set_gate(one, t[4], s);
            return s;
          }};
  row.loops = [scan = row.scan](const Case& one, const Tensors& t) {
    const DecayScan s = scan(one, t);
    return reference::gated(s.q, s.k, s.v, s.gate.log ? s.gate.key.exp() : s.gate.key, zeros_unless(s.state, s.k, s.v),
                            s.scale);
  };
  return row;
}
TEST(ScanDecayGolden, GatedRetention) { expect_row(gated_row("gated_retention")); }
TEST(ScanDecayGolden, Gla) { expect_row(gated_row("gla")); }

TEST(ScanDecayGolden, Reflection) {
  Row row{
      "reflection",
      [](const Case&) { return std::vector<std::string>{"in.q", "in.k", "in.v", "in.initial_state", "in.e", "in.s"}; },
      [](const Case& one, const Tensors& t) {
        DecayScan s{t[0], t[1], t[2], t[3]};
        s.scale = scale_of(one, t[0].size(3));
        const bool logit = one.config.at("gate").get<std::string>() == "logit";
        s.gate.value = logit ? at::sigmoid(t[4]) : t[4], s.gate.key = logit ? at::sigmoid(t[5]) : t[5];
        return s;
      }};
  row.loops = [scan = row.scan](const Case& one, const Tensors& t) {
    const DecayScan s = scan(one, t);
    return reference::reflection(s.q, s.k, s.v, s.gate.value, s.gate.key, zeros_unless(s.state, s.k, s.v), s.scale);
  };
  expect_row(row);
}

TEST(ScanDecayGolden, Rwkv6) {
  Row row{"rwkv6",
          [](const Case&) {
            return std::vector<std::string>{"in.r", "in.k", "in.v", "in.initial_state", "in.log_w", "param.u"};
          },
          [](const Case& one, const Tensors& t) {
            DecayScan s{t[0], t[1], t[2], t[3]};
            s.scale = scale_of(one, t[0].size(3));
            s.gate.key = t[4], s.gate.log = true, s.before = true, s.bonus = t[5];
            return s;
          }};
  row.loops = [](const Case&, const Tensors& t) {
    return reference::rwkv6(t[0], t[1], t[2], t[4].exp(), t[5], zeros_unless(t[3], t[1], t[2]));
  };
  expect_row(row);
}

// One key channel that always holds 1, a decay for each value channel.
TEST(ScanDecayGolden, Hgrn) {
  const auto gated = [](const Case& one) { return one.config.at("form").get<std::string>() == "gated"; };
  Row row{"hgrn",
          [&](const Case& one) {
            return gated(one) ? std::vector<std::string>{"in.x", "in.f_logit", "in.initial_state", "param.lower"}
                              : std::vector<std::string>{"in.x", "in.log_f", "in.initial_state"};
          },
          [&](const Case& one, const Tensors& t) {
            const Tensor f = gated(one) ? t[3] + (1 - t[3]) * at::sigmoid(t[1]) : t[1].exp();
            const Tensor u = gated(one) ? (1 - f) * at::silu(t[0]) : t[0];
            const Tensor one_channel = at::ones({t[0].size(0), 1, t[0].size(1), 1}, t[0].options());
            DecayScan s{one_channel, one_channel, u.unsqueeze(1), t[2].view({t[2].size(0), 1, 1, -1})};
            s.gate.value = f.unsqueeze(1);
            return s;
          }};
  row.finish = [](const Case&, const Tensors&, const Tensor& out) { return out.squeeze(1); };
  row.state = [](const Tensor& state) { return state.flatten(1); };
  row.loops = [scan = row.scan](const Case& one, const Tensors& t) {
    const DecayScan s = scan(one, t);
    return reference::gated_sum(s.gate.value.squeeze(1), s.v.squeeze(1), t[2]);
  };
  expect_row(row);
}

// Mamba-2's core is gated retention: q = C, k = B, v = dt x, log decay dt A.
TEST(ScanDecayGolden, Ssd) {
  const auto step = [](const Case& one, const Tensors& t) {  // dt [B, H, L]
    const bool soft = one.config.at("dt_softplus").get<bool>();
    const Tensor dt = t[7].defined() ? t[1] + t[7].view({1, -1, 1}) : t[1];
    return soft ? at::softplus(dt) : dt;
  };
  Row row{"ssd",
          [](const Case&) {
            return std::vector<std::string>{"in.x",    "in.dt",   "in.B",         "in.C", "in.initial_state",
                                            "param.A", "param.D", "param.dt_bias"};
          },
          [&](const Case& one, const Tensors& t) {
            const Tensor dt = step(one, t);
            const int64_t share = t[0].size(1) / t[2].size(1);
            const auto heads = [&](const Tensor& g) { return g.repeat_interleave(share, 1); };
            DecayScan s{heads(t[3]), heads(t[2]), dt.unsqueeze(-1) * t[0], t[4]};
            s.gate.key = dt * t[5].view({1, -1, 1}), s.gate.log = true;
            return s;
          }};
  row.out = "y";
  row.finish = [](const Case&, const Tensors& t, const Tensor& out) {
    return t[6].defined() ? out + t[6].view({1, -1, 1, 1}) * t[0] : out;
  };
  expect_row(row);
}

}  // namespace
}  // namespace kinfolk
