#include "kinfolk/nn/memory/compressive.h"

#include "kinfolk/nn/memory/compress_conv.h"
#include "kinfolk/reference/compressive.h"
#include "tests/support/attention.h"

namespace kinfolk {
namespace {
using namespace testing;

const std::vector<std::string> kKinds{"max_pool", "mean_pool", "conv", "dilated_conv", "most_used"};

std::string memory(int64_t n, int64_t m, int64_t slots, int64_t c, const std::string& kind = "conv",
                   const std::string& more = "") {
  return text("memory = { kind = \"compressive\", segment = ", n, ", memory = ", m, ", slots = ", slots, ", rate = ", c,
              ", compress = \"", kind, "\"", more, " }\n");
}
const std::string kSteps = "qk = [\"xl_bias\"]\nscore = [\"xl\"]\n";

const Compressive& of(const Attention& branch) { return dynamic_cast<const Compressive&>(*branch.memory); }

/// Output and the loss "compression" of calls with a state, weighted by their tokens.
struct Heard {
  Tensor out, loss;
  State state;
};
Heard hear(Attention& branch, const Sequence& s, const std::vector<int64_t>& calls) {
  Heard heard;
  heard.state = branch.start(s.x.size(0), s.x.options());
  heard.loss = at::zeros({}, real());
  std::vector<Tensor> out;
  int64_t from = 0;
  const Batch batch;
  for (const int64_t length : calls) {
    Pass pass{batch};
    std::map<std::string, Tensor> losses;
    pass.losses = &losses;
    pass.position = at::arange(from, from + length, at::kLong).repeat({s.x.size(0), 1});
    if (s.document.defined()) pass.document = s.document.narrow(1, from, length);
    out.push_back(branch.forward(s.x.narrow(1, from, length), pass, &heard.state));
    const auto share = static_cast<double>(length) / static_cast<double>(s.x.size(1));
    heard.loss = heard.loss + losses.at("compression") * share;
    from += length;
  }
  heard.out = at::cat(out, 1);
  return heard;
}

reference::Compressor compressor_of(const Compressive& memory, const std::string& kind, int64_t c) {
  reference::Compressor f{kind, c};
  f.taps = c, f.dilation = kind == "dilated_conv" ? 2 : 1;
  if (const auto taps = std::dynamic_pointer_cast<TapCompression>(memory.compression)) {
    for (int64_t t = 0; t < c; ++t) f.weight.push_back(reference::matrix_of(taps->weight.select(2, t)));
    f.bias = reference::matrix_of(taps->bias.unsqueeze(0))[0];
  }
  return f;
}

TEST(Compressive, EqualsTheArticlesAlgorithmInLoops) {
  const int64_t width = 4, length = 36, n = 6, m = 12, slots = 5, c = 3;
  for (const auto& kind : kKinds) {
    SCOPED_TRACE(kind);
    const auto branch = make_attention(memory(n, m, slots, c, kind), width, 1);
    const Sequence s{normal({1, length, width}, 5)};
    reference::Projections p{reference::matrix_of(branch->q->weight), reference::matrix_of(branch->k->weight),
                             reference::matrix_of(branch->v->weight), 1 / std::sqrt(static_cast<double>(width))};
    const auto x = reference::matrix_of(s.x[0]);
    const auto want = reference::compressive(x, n, m, slots, compressor_of(of(*branch), kind, c), p);
    const Tensor out = branch->out->forward(reference::tensor_of(want.out)).unsqueeze(0);
    for (const auto& calls : std::vector<std::vector<int64_t>>{{36}, {6, 6, 6, 6, 6, 6}, {1, 16, 19}}) {
      const Heard heard = hear(*branch, s, calls);
      EXPECT_LE(distance(heard.out, out), 1e-10);
      EXPECT_NEAR(heard.loss.item<double>(), want.loss, 1e-10);
      EXPECT_GT(want.loss, 0);
      const auto& kept = heard.state.tensors;
      EXPECT_LE(distance(kept.at("slot")[0], reference::tensor_of(want.slots)), 1e-12);
      EXPECT_LE(distance(kept.at("x")[0].slice(0, -m), reference::tensor_of(want.memory)), 1e-12);
    }
    at::NoGradGuard guard;
    branch->eval();
    EXPECT_LE(distance(run(*branch, s, {length}), out), 1e-10);
  }
}

TEST(Compressive, GradientOfTheLossEqualsThatOfTheLoops) {
  const int64_t width = 4, length = 20, n = 4, m = 4, slots = 3, c = 2;
  for (const std::string kind : {"conv", "dilated_conv"}) {
    SCOPED_TRACE(kind);
    const auto branch = make_attention(memory(n, m, slots, c, kind), width, 1);
    const Sequence s{normal({1, length, width}, 5)};
    hear(*branch, s, {7, 13}).loss.backward();
    const auto taps = std::dynamic_pointer_cast<TapCompression>(of(*branch).compression);
    reference::Projections p{reference::matrix_of(branch->q->weight), reference::matrix_of(branch->k->weight),
                             reference::matrix_of(branch->v->weight), 1 / std::sqrt(static_cast<double>(width))};
    const auto x = reference::matrix_of(s.x[0]);
    const auto f = compressor_of(of(*branch), kind, c);
    const auto loss = [&](const reference::Compressor& g) { return reference::compressive(x, n, m, slots, g, p).loss; };
    const double h = 1e-5;
    for (int64_t t = 0; t < c; ++t)
      for (int64_t o = 0; o < width; ++o)
        for (int64_t d = 0; d < width; ++d) {
          auto up = f, down = f;
          up.weight[t][o][d] += h, down.weight[t][o][d] -= h;
          EXPECT_NEAR(taps->weight.grad()[o][d][t].item<double>(), (loss(up) - loss(down)) / (2 * h), 1e-7);
        }
    for (int64_t o = 0; o < width; ++o) {
      auto up = f, down = f;
      up.bias[o] += h, down.bias[o] -= h;
      EXPECT_NEAR(taps->bias.grad()[o].item<double>(), (loss(up) - loss(down)) / (2 * h), 1e-7);
    }
  }
}

TEST(Compressive, TheLossReachesTheCompressionAloneAndTheTaskAllElse) {
  for (const std::string loss : {"attention", "autoencoding"}) {
    SCOPED_TRACE(loss);
    const auto branch =
        make_attention(memory(4, 4, 6, 2, "conv", ", loss = \"" + loss + "\"") + kSteps + "bias = true", 8, 2);
    const auto gradients = [&](bool task) {
      Sequence s{normal({2, 20, 8}, 5).requires_grad_(true)};
      for (auto& p : branch->parameters()) p.mutable_grad() = Tensor();
      const Heard heard = hear(*branch, s, {3, 17});
      (task ? (heard.out * normal(heard.out.sizes(), 8)).sum() : heard.loss).backward();
      std::map<std::string, bool> reached{{"input", s.x.grad().defined()}};
      for (const auto& p : branch->named_parameters()) {
        const Tensor g = p.value().grad();
        reached[p.key()] = g.defined();
        if (g.defined()) EXPECT_GT(g.abs().max().item<double>(), 0) << p.key();
      }
      return reached;
    };
    for (const auto& [name, reached] : gradients(false))
      EXPECT_EQ(reached, name.rfind("memory.", 0) == 0) << "loss, " << name;
    for (const auto& [name, reached] : gradients(true))
      EXPECT_EQ(reached, name.rfind("memory.", 0) != 0) << "task, " << name;
  }
}

TEST(Compressive, EverySplitIsTheWholeForEveryCompression) {
  for (const auto& kind : kKinds)
    for (const auto& sizes :
         std::vector<std::array<int64_t, 4>>{{4, 4, 3, 2}, {5, 3, 4, 2}, {3, 6, 2, 4}, {2, 1, 3, 5}}) {
      const std::string places = sizes[0] % 2 == 0 ? ", places = \"text\"" : "";
      const auto branch = make_attention(memory(sizes[0], sizes[1], sizes[2], sizes[3], kind, places) + kSteps, 8, 2);
      const Sequence s{normal({2, 23, 8}, 5)};
      const auto want = run_with_gradients(*branch, s, {23});
      const Tensor loss = hear(*branch, s, {23}).loss;
      for (const auto& calls :
           std::vector<std::vector<int64_t>>{{1, 22}, {4, 4, 15}, {5, 0, 18}, {7, 9, 7}, std::vector<int64_t>(23, 1)}) {
        const std::string what = text(kind, " ", sizes[0], sizes[1], sizes[2], sizes[3], ", first call ", calls[0]);
        expect_same(run_with_gradients(*branch, s, calls), want, what);
        if (calls[1] > 0) EXPECT_NEAR(hear(*branch, s, calls).loss.item<double>(), loss.item<double>(), 1e-10) << what;
        at::NoGradGuard guard;
        branch->eval();
        EXPECT_LE(distance(run(*branch, s, calls), want.out), 1e-10) << what << ", without gradients";
        branch->train();
      }
    }
}

TEST(Compressive, WithoutAnythingToCompressItIsTransformerXl) {
  const Sequence s{normal({1, 20, 8}, 4)};
  const auto xl = make_attention("memory = { kind = \"segment\", segment = 4, memory = 100 }\n" + kSteps, 8, 2);
  const auto branch = make_attention(memory(4, 100, 3, 2) + kSteps, 8, 2);
  for (auto& item : xl->named_parameters()) {
    const at::NoGradGuard guard;
    branch->named_parameters()[item.key()].copy_(item.value());
  }
  EXPECT_LE(distance(run(*branch, s, {9, 11}), run(*xl, s, {20})), 1e-12);
}

TEST(Compressive, ARateOfOneForgetsNothingWithMostUsed) {
  // Slots are then the inputs themselves in their own places, so that all is one long memory.
  const Sequence s{normal({1, 30, 8}, 4)};
  const auto xl = make_attention("memory = { kind = \"segment\", segment = 4, memory = 100 }\n" + kSteps, 8, 2);
  for (const std::string kind : {"most_used", "mean_pool", "max_pool"}) {
    const auto branch = make_attention(memory(4, 4, 96, 1, kind) + kSteps, 8, 2);
    EXPECT_LE(distance(run(*branch, s, {9, 21}), run(*xl, s, {30})), 1e-12) << kind;
  }
}

// A position matters to xl and to nothing else here: the same slots in other places.
TEST(Compressive, SlotsStandInTheSequenceOrInTheText) {
  const int64_t n = 4, m = 4, slots = 3, c = 2, length = 24;
  const Sequence s{normal({1, length, 8}, 4)};
  for (const std::string places : {"sequence", "text"}) {
    const auto branch =
        make_attention(memory(n, m, slots, c, "mean_pool", ", places = \"" + places + "\"") + kSteps, 8, 2);
    const at::NoGradGuard guard;
    const Tensor got = run(*branch, s, {length});
    const Tensor q = branch->q->forward(s.x).unflatten(-1, {2, 4}).transpose(1, 2);
    for (int64_t begin = 0; begin < length; begin += n) {
      const int64_t gone = std::max<int64_t>(0, begin - m), made = gone / c, kept = std::min(made, slots);
      Tensor keys = s.x.slice(1, gone, begin + n), at = at::arange(gone, begin + n, at::kLong);
      if (kept > 0) {
        const Tensor pooled = s.x.slice(1, 0, gone).unflatten(1, {-1, c}).mean(2).slice(1, made - kept);
        keys = at::cat({pooled, keys}, 1);
        const Tensor place = places == "text" ? (at::arange(made - kept, made, at::kLong) + 1) * c - 1
                                              : at::arange(gone - kept, gone, at::kLong);
        at = at::cat({place, at});
      }
      const auto kv = branch->project(keys);
      const Read read = branch->look(q.slice(2, begin, begin + n), at::arange(begin, begin + n, at::kLong).unsqueeze(0),
                                     {}, {Keys{kv.k, kv.v, at.unsqueeze(0), {}, {}, {}}});
      const Tensor want = branch->out->forward(read.out.transpose(1, 2).flatten(2));
      EXPECT_LE(distance(got.slice(1, begin, begin + n), want), 1e-12) << places << " " << begin;
    }
  }
}

TEST(Compressive, SeesItsReachAndNoFarther) {
  // Changing one token changes exactly the outputs that may see it, alone or within a slot.
  const int64_t n = 4, m = 4, slots = 3, c = 2, length = 25;
  const auto branch = make_attention(memory(n, m, slots, c), 8, 2);
  at::NoGradGuard no_grad;
  const Sequence s{normal({1, length, 8}, 1)};
  const Tensor before = run(*branch, s, {length});
  for (int64_t j = 0; j < length; ++j) {
    Sequence changed{s.x.clone()};
    changed.x.select(1, j).add_(1);
    const Tensor moved = (run(*branch, changed, {length}) - before).abs().amax(-1)[0];
    for (int64_t i = 0; i < length; ++i)
      EXPECT_EQ(moved[i].item<double>() > 1e-9, j <= i && j >= i / n * n - m - c * slots) << i << " " << j;
  }
}

TEST(Compressive, DocumentsAreNotMixed) {
  // What a document reads does not depend on the ones before, whichever compression.
  for (const auto& kind : kKinds) {
    const auto branch = make_attention(memory(4, 4, 6, 2, kind) + kSteps, 8, 2);
    Sequence s{normal({1, 24, 8}, 1)};
    s.document = at::arange(24, at::kLong).ge(7).to(at::kLong).unsqueeze(0);
    Sequence changed{s.x.clone(), {}, s.document};
    changed.x.slice(1, 0, 7).add_(normal({1, 7, 8}, 2));
    for (const auto& calls : std::vector<std::vector<int64_t>>{{24}, {5, 4, 15}}) {
      const Heard a = hear(*branch, s, calls), b = hear(*branch, changed, calls);
      EXPECT_LE(distance(a.out.slice(1, 7), b.out.slice(1, 7)), 1e-12) << kind;
      EXPECT_TRUE(a.loss.isfinite().item<bool>());
    }
  }
}

TEST(Compressive, StateIsAllocatedAtTheStartAndSaysWhatSlotsAreMadeOf) {
  for (const auto& kind : kKinds) {
    const auto branch = make_attention(memory(4, 8, 3, 2, kind), 8, 2);
    State state = branch->start(2, real());
    const int64_t bytes = state.bytes();
    const Sequence s{normal({2, 40, 8}, 1)};
    at::NoGradGuard guard;
    run(*branch, s, {3, 30, 7}, &state);
    EXPECT_EQ(state.bytes(), bytes);
    const auto& kept = state.tensors;
    // Segments end at 40; 32 have left: slots of the newest 6 of these, or of the 3 that were used most of 4 each.
    EXPECT_TRUE(kept.at("at")[0].equal(at::arange(40 - 11, 40, at::kLong)));
    if (kind == "most_used") {
      EXPECT_TRUE(kept.at("slot_first").equal(kept.at("slot_at")) && kept.at("slot_last").equal(kept.at("slot_at")));
      for (int64_t lane = 0; lane < 2; ++lane)
        for (int64_t slot = 0; slot < 3; ++slot) {
          const int64_t at = kept.at("slot_at")[lane][slot].item<int64_t>();
          EXPECT_LE(distance(kept.at("slot")[lane][slot], s.x[lane][at]), 0);
          EXPECT_TRUE(at >= 24 && at < 32);
        }
    } else {
      EXPECT_TRUE(kept.at("slot_at")[1].equal(at::tensor({27, 29, 31}, at::kLong)));
      if (kind != "dilated_conv") EXPECT_TRUE(kept.at("slot_first")[1].equal(at::tensor({26, 28, 30}, at::kLong)));
    }
  }
}

TEST(Compressive, GoesBackWithinWhatItHas) {
  const auto branch = make_attention(memory(4, 4, 6, 2) + kSteps, 8, 2);
  const at::NoGradGuard guard;
  branch->eval();
  const Sequence s{normal({1, 24, 8}, 1)};
  const Tensor whole = run(*branch, s, {24});
  State state = branch->start(1, real());
  run(*branch, {s.x.slice(1, 0, 19)}, {19}, &state);
  EXPECT_NE(branch->memory->truncate(state, 0, 15, 0), "");
  EXPECT_EQ(branch->memory->truncate(state, 0, 17, 0), "");
  EXPECT_LE(distance(run(*branch, {s.x.slice(1, 17)}, {7}, &state, 0, 17), whole.slice(1, 17)), 1e-12);
}

TEST(Compressive, RefusesWhatCannotBe) {
  EXPECT_THROW(make_attention(memory(4, 4, 4, 2) + "pattern = \"full\"", 8, 2), Error);
  EXPECT_THROW(make_attention(memory(4, 4, 4, 2, "conv", ", loss = \"none\""), 8, 2), Error);
  EXPECT_THROW(make_attention(memory(4, 4, 4, 2, "squeeze"), 8, 2), Error);
  EXPECT_THROW(make_attention("memory = { kind = \"compressive\", compress = { kind = \"conv\", rate = 3 } }", 8, 2),
               Error);
  EXPECT_NO_THROW(make_attention(memory(4, 4, 4, 2, "mean_pool", ", loss = \"none\""), 8, 2));
}

TEST(Compressive, ExplainsItsReachAndWork) {
  const auto branch = make_attention(memory(4, 8, 3, 2), 8, 2);
  const auto& memory = of(*branch);
  EXPECT_EQ(memory.seen(3), 4);
  EXPECT_EQ(memory.seen(12), 1 + 8 + 2);
  EXPECT_EQ(memory.seen(43), 4 + 8 + 3);
  const std::string words = branch->explain();
  EXPECT_NE(words.find("(8 + 2 x 3) x 4 = 56 tokens"), std::string::npos) << words;
  EXPECT_NE(words.find("54 pairs"), std::string::npos) << words;  // 10 of the segment, 4 * 11
  // Slots are made at the ends of segments: 2 at 12, 16, 20.
  EXPECT_EQ(memory.flops(12, 0), 2 * 2 * 8 * 8 * 2);
  EXPECT_EQ(memory.flops(12, 0) + memory.flops(8, 12), memory.flops(20, 0));
}

}  // namespace
}  // namespace kinfolk
