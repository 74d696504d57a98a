#include "kinfolk/nn/memory/knn.h"

#include <thread>

#include "kinfolk/nn/memory/knn_buckets.h"
#include "kinfolk/reference/memorizing.h"
#include "tests/support/attention.h"

namespace kinfolk {
namespace {
using namespace testing;

std::string memory(int64_t segment, int64_t local, int64_t memory, int64_t neighbours, const std::string& more = "") {
  return text("memory = { kind = \"knn\", segment = ", segment, ", local = ", local, ", memory = ", memory,
              ", neighbours = ", neighbours, more, " }\n");
}
const std::string kPlain = ", scale = \"head\"", kBuckets = ", search = \"buckets\"";

Knn& memory_of(const Attention& branch) { return *std::dynamic_pointer_cast<Knn>(branch.memory); }

/// Outputs of the definition, lane by lane over the valid tokens.  [B, L, D]
Tensor by_definition(const Attention& branch, const Sequence& s, reference::Memorizing m) {
  const at::NoGradGuard guard;
  const Knn& own = memory_of(branch);
  const int64_t B = s.x.size(0), L = s.x.size(1), H = own.gate.size(0), d = branch.q->weight.size(0) / H;
  for (int64_t h = 0; h < H; ++h) {
    m.gate.push_back(own.gate[h].item<double>());
    if (own.log_scale.defined()) m.log_scale.push_back(own.log_scale[h].item<double>());
  }
  if (!own.log_scale.defined()) m.scale = 1 / std::sqrt(static_cast<double>(d));
  const auto heads = [&](const Linear& linear) { return linear.forward(s.x).unflatten(-1, {H, d}).transpose(1, 2); };
  const Tensor q = heads(*branch.q), k = heads(*branch.k), v = heads(*branch.v);
  Tensor out = at::zeros({B, L, H * d}, at::kDouble);
  for (int64_t b = 0; b < B; ++b) {
    const Tensor places =
        s.valid.defined() ? s.valid[b].nonzero().squeeze(1) : at::arange(L, at::TensorOptions().dtype(at::kLong));
    std::vector<int64_t> document(static_cast<size_t>(places.numel()), 0);
    for (size_t i = 0; i < document.size() && s.document.defined(); ++i)
      document[i] = s.document[b][places[static_cast<int64_t>(i)].item<int64_t>()].item<int64_t>();
    const auto part = [&](const Tensor& t) { return t[b].index_select(1, places).contiguous(); };
    const Tensor read = reference::memorizing(m, part(q), part(k), part(v), document);  // [H, n, d]
    out[b].index_copy_(0, places, read.transpose(0, 1).flatten(1));
  }
  const Tensor y = branch.out->forward(out);
  return s.valid.defined() ? y.masked_fill(s.valid.logical_not().unsqueeze(-1), 0) : y;
}

TEST(Memorizing, Golden) {
  for (const auto& one : golden::cases("attention/memorizing")) {
    // The case's memory stands at positions 0, 1, ...; its local keys begin a segment, right behind.
    const int64_t B = one.at("in.q").size(0), H = one.at("in.q").size(1), L = one.at("in.q").size(2),
                  d = one.at("in.q").size(3), C = one.at("in.mem_k").size(2);
    const int64_t local = (L - C % L) % L, begin = C + local;
    const bool unit = one.config.at("normalise");
    const auto branch = make_attention(memory(L, local, C, one.config.at("k"), unit ? "" : kPlain), H * d, H);
    Knn& knn = memory_of(*branch);
    {
      at::NoGradGuard guard;
      knn.gate.copy_(one.at("param.gate"));
      if (unit) knn.log_scale.copy_(one.at("param.log_scale"));
    }
    State state = knn.start(B, real());
    const Tensor kept = one.at("in.mem_k");
    state.tensors["memory_k"] = unit ? kept / kept.norm(2, -1, true) : kept;
    state.tensors["memory_v"] = one.at("in.mem_v");
    state.tensors["begin"].fill_(0), state.tensors["entered"].fill_(C);
    state.tensors["at"].select(1, -1).fill_(begin -
                                            1);  // a token of the document, of which the local read sees nothing
    state.tensors["document"].fill_(0);
    const Batch batch;
    Pass pass{.batch = batch};
    pass.position = at::arange(begin, begin + L, at::kLong).repeat({B, 1});
    const Tensor q = one.at("in.q").set_requires_grad(true), k = one.at("in.k").set_requires_grad(true),
                 v = one.at("in.v").set_requires_grad(true);
    const Eyes eyes{{}, {}, [&](const Tensor& queries, std::vector<Keys> sets, Look how) {
                      for (Keys& set : sets) {  // the case has no keys between memory and segment
                        set.at = set.at.masked_fill(set.at.lt(begin), -1);
                      }
                      return branch->look(queries, pass.position, {}, std::move(sets), how);
                    }};
    const Read read = knn.meet({{}, q, k, v}, eyes, pass, &state);
    golden::expect_close(read.out, one.at("out.o"), one, "o");
    (read.out * one.at("cot.o")).sum().backward();
    golden::expect_gradient(q.grad(), one.at("grad.in.q"), one, "q");
    golden::expect_gradient(k.grad(), one.at("grad.in.k"), one, "k");
    golden::expect_gradient(v.grad(), one.at("grad.in.v"), one, "v");
    golden::expect_gradient(knn.gate.grad(), one.at("grad.param.gate"), one, "gate");
    if (unit) golden::expect_gradient(knn.log_scale.grad(), one.at("grad.param.log_scale"), one, "log_scale");
  }
}

TEST(Memorizing, EqualsTheDefinition) {
  at::manual_seed(1);
  const int64_t length = 37;
  const Tensor valid = at::rand({2, length}) > 0.2;
  const Tensor document =
      (at::arange(length, at::kLong).unsqueeze(0) >= at::tensor({11, 23}, at::kLong).unsqueeze(1)).to(at::kLong);
  for (const std::string more : {std::string(), kPlain})
    for (const auto& [n, m, c, k] : std::vector<std::array<int64_t, 4>>{
             {4, 3, 100, 3}, {4, 3, 6, 2}, {5, 0, 7, 4}, {1, 0, 8, 2}, {8, 2, 5, 100}, {3, 9, 4, 1}}) {
      const auto branch = make_attention(memory(n, m, c, k, more), 8, 2);
      for (const bool marked : {false, true}) {
        Sequence s{normal({2, length, 8}, 1)};
        if (marked) s.valid = valid, s.document = document;
        const Tensor want = by_definition(*branch, s, {n, m, c, k});
        for (const auto& calls :
             std::vector<std::vector<int64_t>>{{length}, {13, 24}, {1, 2, 3, 31}, std::vector<int64_t>(length, 1)}) {
          const Tensor got = run(*branch, s, calls);
          const Tensor shown = marked ? got.masked_fill(valid.logical_not().unsqueeze(-1), 0) : got;
          EXPECT_LE(distance(shown, want), 1e-11) << n << " " << m << " " << c << " " << k << ", calls " << calls[0];
        }
      }
    }
}

TEST(Memorizing, EverySplitGivesTheWholeWithItsGradients) {
  const int64_t length = 14;
  for (const std::string more : {std::string(), kPlain, kBuckets + ", buckets = 2, probes = 1"}) {
    const auto branch = make_attention(memory(3, 2, 7, 2, more) + "qk = [\"rope\"]\nscore = [\"alibi\"]", 8, 2);
    const Sequence s{normal({2, length, 8}, 2)};
    const Outcome whole = run_with_gradients(*branch, s, {length});
    for (const auto& calls : splits(length)) expect_same(run_with_gradients(*branch, s, calls), whole, more);
  }
}

TEST(Memorizing, NoGradientReachesWhatIsRemembered) {
  const int64_t n = 4, length = 12;
  const auto branch = make_attention(memory(n, 4, 50, 3), 8, 2);
  for (int64_t i = 0; i < length; ++i) {
    const Tensor x = normal({1, length, 8}, 1).set_requires_grad(true);
    run(*branch, {x}, {5, 7}).select(1, i).sum().backward();
    const Tensor reached = x.grad().abs().amax(-1)[0];
    for (int64_t j = 0; j < length; ++j)
      EXPECT_EQ(reached[j].item<double>() > 0, j <= i && j >= i / n * n) << i << " " << j;
  }
}

TEST(Memorizing, StateIsThereAtTheStartAndNeverGrows) {
  for (const std::string more : {std::string(), kBuckets}) {
    const auto branch = make_attention(memory(4, 4, 20, 3, more), 8, 2);
    State state = branch->start(1, real());
    const int64_t bytes = state.bytes();
    const at::NoGradGuard guard;
    for (int64_t call = 0; call < 12; ++call) {
      run(*branch, {normal({1, 7, 8}, static_cast<uint64_t>(call))}, {7}, &state, 0, call * 7);
      EXPECT_EQ(state.bytes(), bytes);
    }
  }
}

TEST(Memorizing, AMemoryThatOthersHoldIsNeverWrittenInto) {
  const auto branch = make_attention(memory(2, 0, 10, 3, kBuckets + ", buckets = 2"), 8, 2);
  const at::NoGradGuard guard;
  State state = branch->start(1, real());
  run(*branch, {normal({1, 9, 8}, 3)}, {9}, &state);
  const void* place = state.tensors.at("memory_k").const_data_ptr();
  State shared = state;  // the same tensors
  const State copy = state.clone();
  run(*branch, {normal({1, 4, 8}, 4)}, {4}, &state, 0, 9);
  for (const auto& [name, tensor] : copy.tensors) EXPECT_TRUE(tensor.equal(shared.tensors.at(name))) << name;
  EXPECT_FALSE(state.tensors.at("memory_k").equal(copy.tensors.at("memory_k")));
  shared = {};
  place = state.tensors.at("memory_k").const_data_ptr();
  run(*branch, {normal({1, 4, 8}, 5)}, {4}, &state, 0, 13);
  EXPECT_EQ(state.tensors.at("memory_k").const_data_ptr(), place) << "nobody else holds it: no copy";
}

TEST(Memorizing, ANewDocumentClearsTheMemoryOfItsLane) {
  // Values tell where an output came from: tokens of the first document have a mark that the second must not read.
  const auto branch = make_attention(memory(2, 0, 30, 5, kBuckets + ", buckets = 2"), 8, 2);
  const at::NoGradGuard guard;
  Sequence s{normal({2, 24, 8}, 6)};
  s.document = at::zeros({2, 24}, at::kLong);
  s.document[0].slice(0, 13).fill_(1);
  const Tensor before = run(*branch, s, {24});
  Sequence changed = s;
  changed.x = s.x.clone();
  changed.x.slice(1, 0, 13).normal_(0, 5, at::detail::createCPUGenerator(1));
  const Tensor after = run(*branch, changed, {10, 14});
  EXPECT_LE(distance(after[0].slice(0, 13), before[0].slice(0, 13)), 1e-12);
  EXPECT_GT(distance(after[1].slice(0, 13), before[1].slice(0, 13)), 1e-3) << "the other lane remembers";
}

TEST(Memorizing, ALaneStartsAnewAlone) {
  const auto branch = make_attention(memory(3, 2, 12, 3), 8, 2);
  const at::NoGradGuard guard;
  const Sequence s{normal({2, 30, 8}, 7)}, rest{s.x.slice(1, 15)};
  State state = branch->start(2, real());
  run(*branch, {s.x.slice(1, 0, 15)}, {15}, &state);
  state.put_lane(1, branch->start(1, real()));
  // Positions of lane 1 begin again.
  const Batch batch;
  Pass pass{.batch = batch};
  pass.position = at::arange(15, at::kLong).unsqueeze(0) + at::tensor({15, 0}, at::kLong).unsqueeze(1);
  const Tensor got = branch->forward(rest.x, pass, &state);
  EXPECT_LE(distance(got[0], run(*branch, s, {30})[0].slice(0, 15)), 1e-12);
  EXPECT_LE(distance(got[1], run(*branch, rest, {15})[1]), 1e-12);
}

TEST(Memorizing, AMemoryHeldByNobodyIsNoLargerThanTheCall) {
  const auto branch = make_attention(memory(4, 4, 1 << 30, 3), 8, 2);  // 256 GiB, were it allocated
  const at::NoGradGuard guard;
  const Sequence s{normal({1, 30, 8}, 8)};
  EXPECT_LE(distance(run(*branch, s, {30}), by_definition(*branch, s, {4, 4, 1 << 30, 3})), 1e-11);
}

TEST(Memorizing, WhatThreadsAddIsFound) {
  const int64_t lanes = 4, count = 1000, heads = 2, width = 8;
  const auto branch = make_attention(memory(1, 0, count, 1), width * heads, heads);
  const auto inputs = normal({lanes, count + 1, width * heads}, 9);
  std::vector<State> states(lanes);
  std::vector<std::thread> threads;
  for (int64_t lane = 0; lane < lanes; ++lane) {
    threads.emplace_back([&, lane] {
      const at::NoGradGuard guard;
      states[static_cast<size_t>(lane)] = branch->memory->start(1, real());
      const Tensor x = inputs.narrow(0, lane, 1);
      for (int64_t from = 0; from < count; from += 125) {
        const Batch batch;
        Pass pass{.batch = batch};
        pass.position = at::arange(from, from + 125, at::kLong).unsqueeze(0);
        branch->forward(x.narrow(1, from, 125), pass, &states[static_cast<size_t>(lane)]);
      }
    });
  }
  for (auto& thread : threads) thread.join();
  const at::NoGradGuard guard;
  const auto made = [&](const Linear& linear, int64_t lane) {
    return linear.forward(inputs.narrow(0, lane, 1).narrow(1, 0, count)).unflatten(-1, {heads, width}).transpose(1, 2);
  };
  for (int64_t lane = 0; lane < lanes; ++lane) {
    const auto& kept = states[static_cast<size_t>(lane)].tensors;
    const Tensor raw = made(*branch->k, lane), keys = raw / raw.norm(2, -1, true);
    const NearestRead read = attend_nearest(keys, kept.at("memory_k"), kept.at("memory_v"), {{0, count}}, 1);
    EXPECT_TRUE(read.index.select(-1, 0).equal(at::arange(count, at::kLong).expand({1, heads, count}))) << lane;
    EXPECT_LE(distance(kept.at("memory_k"), keys), 1e-12) << lane;
    EXPECT_LE(distance(read.out, made(*branch->v, lane)), 1e-12) << lane;
  }
}

TEST(Memorizing, BucketsFindMostOfWhatIsNearest) {
  // Keys in clumps, as those of tokens of a kind are.
  auto generator = at::detail::createCPUGenerator(9);
  const Tensor clumps = at::normal(0, 1, {1, 60, 16}, generator);
  const auto some = [&](int64_t n) {
    const Tensor which = at::randint(0, 60, {n}, generator, at::kLong);
    const Tensor x = clumps.index_select(1, which) + 0.3 * at::normal(0, 1, {1, n, 16}, generator);
    return (x / x.norm(2, -1, true)).to(at::kFloat);
  };
  const Tensor keys = some(4096), queries = some(200).unsqueeze(0);
  const Tensor centre = fit_centres(keys, 64);
  Buckets buckets{nearest_bucket(keys, centre).unsqueeze(0), centre.unsqueeze(0), 8};
  EXPECT_GT(std::get<0>(at::_unique(buckets.code)).numel(), 50) << "most buckets are used";
  const Tensor exact = largest_products(queries, keys.unsqueeze(0), {{0, 4096}}, 32);
  const Tensor found = largest_products(queries, keys.unsqueeze(0), {{0, 4096}}, 32, &buckets);
  const double recall = found.unsqueeze(-1).eq(exact.unsqueeze(-2)).any(-1).to(at::kDouble).mean().item<double>();
  EXPECT_GT(recall, 0.9) << "in an eighth of the buckets";
}

TEST(Memorizing, BucketsAreFittedAsTheMemoryFillsAndChanges) {
  std::vector<int64_t> fits;
  for (int64_t entered = 4, fitted = 0; entered <= 4000; entered += 4)
    if (fit_is_due(entered, fitted, 1024, 32)) fits.push_back(fitted = entered);
  EXPECT_EQ(fits, (std::vector<int64_t>{64, 128, 256, 512, 1024, 1536, 2048, 2560, 3072, 3584}));
}

TEST(Memorizing, RefusesWhatItCannotDo) {
  EXPECT_THROW(make_attention(memory(4, 4, 8, 2) + "pattern = \"full\"", 8, 2), Error);
}

}  // namespace
}  // namespace kinfolk
