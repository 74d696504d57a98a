// The compressions and what trains them, against golden cases.
#include "kinfolk/nn/memory/compress_conv.h"
#include "kinfolk/nn/memory/compress_loss.h"
#include "kinfolk/nn/memory/compress_most_used.h"
#include "kinfolk/nn/memory/compress_pool.h"
#include "kinfolk/nn/memory/compressive.h"
#include "tests/support/attention.h"

namespace kinfolk {
namespace {
using namespace testing;

const std::map<std::string, std::string> kNames{{"max", "max_pool"},
                                                {"mean", "mean_pool"},
                                                {"conv", "conv"},
                                                {"dilated", "dilated_conv"},
                                                {"most_used", "most_used"}};

Context context_of(int64_t width) {
  Context context;
  context.size.width = width, context.size.heads = 2;
  context.like = real();
  context.path = "memory";
  return context;
}

std::shared_ptr<Compression> make_compression(const std::string& kind, int64_t rate, int64_t width,
                                              const std::string& more = "") {
  const Value table = parse_toml(text("kind = \"", kind, "\"\nrate = ", rate, "\n", more), "options");
  return registry<Compression>().create(Spec(table), context_of(width), "compress");
}

/// The compression of a case, with its parameters.
std::shared_ptr<Compression> compression_of(const golden::Case& one, int64_t width) {
  const std::string kind = kNames.at(one.config.at("compress"));
  const int64_t rate = one.config.at("rate"), dilation = one.config.at("dilation");
  std::string more;
  if (kind == "dilated_conv") more = text("taps = ", one.at("param.conv").size(2), "\ndilation = ", dilation);
  const auto made = make_compression(kind, rate, width, more);
  if (const auto taps = std::dynamic_pointer_cast<TapCompression>(made)) {
    const at::NoGradGuard guard;
    taps->weight.copy_(one.at("param.conv"));
    taps->bias.copy_(one.at("param.conv_bias"));
  }
  return made;
}

void expect_conv_gradients(const golden::Case& one, const Compression& made) {
  const auto* taps = dynamic_cast<const TapCompression*>(&made);
  if (!taps) return;
  golden::expect_gradient(taps->weight.grad(), one.at("grad.param.conv"), one, "conv");
  golden::expect_gradient(taps->bias.grad(), one.at("grad.param.conv_bias"), one, "conv_bias");
}

Leaving leaving_of(const Tensor& rows) {
  return {rows, at::full({rows.size(0)}, rows.size(1), at::kLong), at::zeros({rows.size(0), rows.size(1)}, at::kLong)};
}

TEST(Compression, GoldenMemory) {
  for (const auto& one : golden::cases("attention/compressive_memory")) {
    SCOPED_TRACE(one.name);
    const Tensor mem = one.at("in.mem").requires_grad_(true), cmem = one.at("in.cmem").requires_grad_(true),
                 h = one.at("in.h").requires_grad_(true);
    const int64_t length = h.size(1), memory = one.config.at("mem_size"), slots = one.config.at("cmem_size");
    const auto made = compression_of(one, h.size(2));
    const Tensor old = mem.slice(1, 0, length);
    Leaving leaving = leaving_of(old);
    if (one.has("in.usage")) leaving.usage = one.at("in.usage").slice(1, 0, length);
    EXPECT_EQ(made->wants_usage(), one.has("in.usage"));
    const Slots slot = made->compress(leaving);
    const Tensor new_mem = at::cat({mem, h}, 1).slice(1, -memory), all = at::cat({cmem, slot.rows}, 1);
    const Tensor new_cmem = all.slice(1, std::max<int64_t>(0, all.size(1) - slots));
    golden::expect_close(old, one.at("out.old"), one, "old");
    golden::expect_close(slot.rows, one.at("out.new_cm"), one, "new_cm");
    golden::expect_close(new_mem, one.at("out.mem"), one, "mem");
    golden::expect_close(new_cmem, one.at("out.cmem"), one, "cmem");
    ((old * one.at("cot.old")).sum() + (slot.rows * one.at("cot.new_cm")).sum() + (new_mem * one.at("cot.mem")).sum() +
     (new_cmem * one.at("cot.cmem")).sum())
        .backward();
    const auto gradient = [](const Tensor& x) { return x.grad().defined() ? x.grad() : at::zeros_like(x); };
    golden::expect_gradient(gradient(mem), one.at("grad.in.mem"), one, "mem");
    golden::expect_gradient(gradient(cmem), one.at("grad.in.cmem"), one, "cmem");
    golden::expect_gradient(gradient(h), one.at("grad.in.h"), one, "h");
    expect_conv_gradients(one, *made);
  }
}

// The same through the state of the memory itself: what it keeps after one more segment.
TEST(Compression, GoldenMemoryThroughTheState) {
  for (const auto& one : golden::cases("attention/compressive_memory")) {
    SCOPED_TRACE(one.name);
    if (one.has("in.usage")) continue;  // what is given here is measured there
    const Tensor mem = one.at("in.mem"), cmem = one.at("in.cmem"), h = one.at("in.h");
    const int64_t n = h.size(1), m = mem.size(1), rate = one.config.at("rate"), batch = h.size(0), width = h.size(2);
    Compressive::Options options;
    options.segment = n, options.memory = m, options.rate = rate, options.slots = one.config.at("cmem_size");
    options.compress = Spec(kNames.at(one.config.at("compress")));
    Context context = context_of(width);
    context.heads.count = context.heads.groups = 2, context.heads.width = width / 2, context.heads.scale = 1;
    Compressive memory(options, context);
    memory.compression = compression_of(one, width);
    // As many tokens before as make these slots, in whole segments; of more than these slots, the oldest were dropped.
    const int64_t before = m + cmem.size(1) * rate, begin = (before + n - 1) / n * n, made = (begin - m) / rate;
    State state = memory.start(batch, real());
    auto& kept = state.tensors;
    kept["x"].slice(1, -m).copy_(mem);
    kept["at"].slice(1, -m).copy_(at::arange(begin - m, begin));
    kept["slot"].slice(1, -cmem.size(1)).copy_(cmem);
    kept["slot_at"].slice(1, -cmem.size(1)).copy_((at::arange(made - cmem.size(1), made) + 1) * rate - 1);
    const Tensor zero = at::zeros({batch, 2, n, width / 2}, real());
    const Eyes eyes{[&](const Tensor& x) {
                      const Tensor raw = at::zeros({batch, 2, x.size(1), width / 2}, real());
                      return Eyes::KeyValue{raw, raw};
                    },
                    {},
                    [&](const Tensor& q, const std::vector<Keys>&, Look) {
                      return Read{q, {}};
                    },
                    {}};
    const Batch nothing;
    Pass pass{nothing};
    pass.position = at::arange(begin, begin + n, at::kLong).repeat({batch, 1});
    memory.meet({h, zero, zero, zero}, eyes, pass, &state);
    golden::expect_close(kept["x"].slice(1, -m), one.at("out.mem"), one, "mem");
    const Tensor cm = one.at("out.cmem");
    golden::expect_close(kept["slot"].slice(1, -cm.size(1)), cm, one, "cmem");
  }
}

TEST(Compression, GoldenLosses) {
  for (const auto& one : golden::cases("attention/compressive_loss")) {
    SCOPED_TRACE(one.name);
    const Tensor old = one.at("in.old");
    const int64_t width = old.size(2), heads = one.config.at("heads"), rate = one.config.at("rate");
    const auto made = compression_of(one, width);
    const Tensor slots = made->compress(leaving_of(old)).rows;
    golden::expect_close(slots, one.at("out.new_cm"), one, "new_cm");
    Decoder decoder(context_of(width), rate);
    Tensor d;
    if (one.config.at("loss") == "attention") {
      const auto split = [&](const Tensor& x, const char* w) {
        return at::matmul(x, one.at(w)).unflatten(2, {heads, -1}).transpose(1, 2);
      };
      const Tensor q = split(one.at("in.h"), "param.wq");
      const auto read = [&](const Tensor& m) {
        return read_by_content(q, split(m, "param.wk"), split(m, "param.wv"), {}, one.config.at("scale"));
      };
      d = read(old) - read(slots);
    } else {
      const at::NoGradGuard guard;
      decoder.weight.copy_(one.at("param.deconv"));
      decoder.bias.copy_(one.at("param.deconv_bias"));
    }
    if (!d.defined()) d = old - decoder.forward(slots);
    const Tensor flat = d.reshape({1, -1});
    Tensor sum = at::zeros({1}, real());
    for (const auto& [measure, name] :
         std::map<std::string, std::string>{{"l2", "l2"}, {"square", "sq"}, {"mean_square", "mse"}}) {
      const Tensor loss = size_of_difference(flat, measure);
      golden::expect_close(loss, one.at("out.loss_" + name), one, name);
      if (one.has("cot.loss_" + name)) sum = sum + loss * one.at("cot.loss_" + name);
    }
    if (!sum.requires_grad()) continue;
    sum.sum().backward();
    expect_conv_gradients(one, *made);
    if (one.has("grad.param.deconv")) {
      golden::expect_gradient(decoder.weight.grad(), one.at("grad.param.deconv"), one, "deconv");
      golden::expect_gradient(decoder.bias.grad(), one.at("grad.param.deconv_bias"), one, "deconv_bias");
    }
  }
}

TEST(Compression, SaysWhichRowsASlotIsMadeOf) {
  // Changing a row changes the slots that say so, and no others.
  const int64_t rate = 3, length = 9, width = 4;
  for (const auto& [kind, more] : std::vector<std::pair<std::string, std::string>>{{"max_pool", ""},
                                                                                   {"mean_pool", ""},
                                                                                   {"conv", ""},
                                                                                   {"dilated_conv", "dilation = 2"},
                                                                                   {"dilated_conv", "taps = 4"},
                                                                                   {"dilated_conv", "taps = 1"}}) {
    const at::NoGradGuard guard;
    const auto made = make_compression(kind, rate, width, more);
    Leaving leaving = leaving_of(normal({1, length, width}, 3));
    const Slots slots = made->compress(leaving);
    EXPECT_EQ(slots.rows.sizes(), (std::vector<int64_t>{1, length / rate, width}));
    for (int64_t row = 0; row < length; ++row) {
      Leaving changed = leaving;
      changed.rows = leaving.rows.clone();
      changed.rows.select(1, row).add_(100);
      const Tensor moved = (made->compress(changed).rows - slots.rows).abs().amax(-1)[0];
      for (int64_t s = 0; s < length / rate; ++s) {
        const bool within = slots.first[0][s].item<int64_t>() <= row && row <= slots.last[0][s].item<int64_t>();
        if (moved[s].item<double>() > 0) EXPECT_TRUE(within) << kind << " " << more << ", slot " << s << " row " << row;
        if (kind != "dilated_conv") EXPECT_EQ(moved[s].item<double>() > 0, within) << kind << " " << s << " " << row;
      }
    }
  }
}

TEST(Compression, FewerRowsThanOthersAreZerosAtTheEnd) {
  for (const std::string kind : {"max_pool", "mean_pool", "conv", "dilated_conv", "most_used"}) {
    const at::NoGradGuard guard;
    const auto made = make_compression(kind, 2, 4);
    Leaving both = leaving_of(normal({2, 6, 4}, 3));
    both.usage = normal({2, 6}, 4).abs();
    both.count[1] = 4, both.rows[1].slice(0, 4).zero_(), both.document[1].slice(0, 4).fill_(-1);
    Leaving alone = leaving_of(both.rows.slice(0, 1, 2).slice(1, 0, 4));
    alone.usage = both.usage.slice(0, 1, 2).slice(1, 0, 4);
    const Slots got = made->compress(both), want = made->compress(alone);
    EXPECT_LE(distance(got.rows[1].slice(0, 0, 2), want.rows[0]), 1e-12) << kind;
    for (const auto& [g, w] : {std::pair(got.at, want.at), {got.first, want.first}, {got.last, want.last}})
      EXPECT_TRUE(g[1].slice(0, 0, 2).equal(w[0])) << kind << g << w;
  }
}

TEST(Compression, MostUsedPrefersTheNewestDocument) {
  const auto made = make_compression("most_used", 2, 1);
  Leaving leaving = leaving_of(at::arange(6, real()).view({1, 6, 1}));
  leaving.usage = at::tensor({9.0, 8.0, 7.0, 1.0, 3.0, 2.0}, at::kDouble).view({1, 6});
  EXPECT_TRUE(made->compress(leaving).at.equal(at::tensor({0, 1, 2}, at::kLong).view({1, 3})));
  leaving.document = at::tensor({0, 0, 0, 0, 1, 1}, at::kLong).view({1, 6});
  EXPECT_TRUE(made->compress(leaving).at.equal(at::tensor({0, 4, 5}, at::kLong).view({1, 3})));
}

TEST(Compression, ANormOfZeroHasAGradient) {
  const Tensor d = at::zeros({2, 3}, real()).requires_grad_(true);
  size_of_difference(d, "l2").sum().backward();
  EXPECT_EQ(d.grad().abs().max().item<double>(), 0);
  EXPECT_THROW(size_of_difference(d, "l3"), Error);
}

}  // namespace
}  // namespace kinfolk
