// Models of Hugging Face's transformers, built from recipes over the components of the family, with the weights of its
// files: logits, hidden states, losses and gradients within the tolerances of each case.
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "kinfolk/core/errors.h"
#include "kinfolk/core/safetensors.h"
#include "kinfolk/reference/golden.h"
#include "tests/hf/names.h"

namespace kinfolk::hf {
namespace {

using Json = nlohmann::json;

struct CaseRun {
  std::string prefix, runner;
  Json options, only_where;
};

/// A folder of the golden cases: config.json, model.safetensors, io.safetensors.
struct Case {
  std::string name;
  Json config, tolerances;
  std::map<std::string, Tensor> weights, io;
  std::vector<CaseRun> runs;
  Imported imported;
  std::shared_ptr<Model> model;

  explicit Case(const std::filesystem::path& folder)
      : name(folder.parent_path().filename().string() + "/" + folder.filename().string()) {
    std::ifstream in(folder / "config.json");
    std::string words{std::istreambuf_iterator<char>(in), {}};
    if (const size_t at = words.find("Infinity"); at != std::string::npos) words.replace(at, 8, "null");  // not JSON
    config = Json::parse(words);
    weights = read_tensors((folder / "model.safetensors").string()).tensors;
    const TensorFile file = read_tensors((folder / "io.safetensors").string());
    io = file.tensors;
    tolerances = Json::parse(file.metadata.at("tolerances"));
    for (const auto& run : Json::parse(file.metadata.at("runs"))) {
      runs.push_back({run.at("prefix"), run.at("runner"), run.at("opts"), run.at("compare_only_where")});
    }
    build(runs.at(0));
  }

  /// The model for a run: some depend on the length of the call.
  void build(const CaseRun& run) {
    const Json segments = run.options.value("segments", Json::array({1}));
    Imported next = import_config(config, segments.at(0), in(run, "input_ids").size(1));
    const bool same = model && next.recipe == imported.recipe;
    imported = std::move(next);
    if (imported.why_not.empty() && !same) load();
  }

  void load() {
    model = Model::make({name, parse_toml(imported.recipe, name)}, imported.size);
    model->eval();
    std::map<std::string, Tensor> ours;
    for (const auto& [key, tensor] : model->weights()) ours[key] = tensor;
    std::set<std::string> filled;
    at::NoGradGuard guard;
    for (const auto& [theirs, tensor] : weights) {
      if (imported.unused.count(theirs)) continue;
      const auto found = imported.names.find(theirs);
      ASSERT_NE(found, imported.names.end()) << name << ": nothing of ours is called for by " << theirs;
      Tensor rest = found->second.transposed ? tensor.t() : tensor;
      for (const auto& part : found->second.ours) {
        ASSERT_TRUE(ours.count(part)) << name << ": no parameter " << part;
        Tensor to = ours.at(part);
        const int64_t rows = to.size(0);
        ASSERT_LE(rows, rest.size(0)) << theirs;
        to.copy_(rest.narrow(0, 0, rows).reshape(to.sizes()));  // theirs may have an axis of one entry
        rest = rest.narrow(0, rows, rest.size(0) - rows);
        EXPECT_TRUE(filled.insert(part).second) << part << " is filled twice";
      }
      EXPECT_EQ(rest.size(0), 0) << theirs << " holds more than its parts";
    }
    for (const auto& part : imported.zeros) {
      ASSERT_TRUE(ours.count(part)) << name << ": no parameter " << part;
      ours.at(part).zero_();
      EXPECT_TRUE(filled.insert(part).second) << part << " is filled twice";
    }
    EXPECT_EQ(filled.size(), ours.size()) << name << ": some of our parameters got no value";
  }

  Tensor in(const CaseRun& run, const std::string& key) const {
    const auto found = io.find(run.prefix + "in." + key);
    return found == io.end() ? Tensor() : found->second;
  }
  void expect_close(const CaseRun& run, const std::string& key, const Tensor& got) const {
    const std::string full = run.prefix + key;
    ASSERT_TRUE(io.count(full)) << name << ": no " << full;
    const Tensor want = io.at(full);
    ASSERT_EQ(got.sizes(), want.sizes()) << name << " " << full;
    Tensor difference = (got.detach() - want).abs();
    for (const auto& [start, words] : run.only_where.items()) {
      // The one form in use: "<run>.in.attention_mask == 1".
      ASSERT_EQ(words.get<std::string>(), run.prefix + "in.attention_mask == 1");
      if (full.find(start) == std::string::npos) continue;
      difference = difference.index({in(run, "attention_mask").eq(1)});
    }
    EXPECT_GT(difference.numel(), 0);
    EXPECT_TRUE(difference.isfinite().all().item<bool>()) << name << " " << full;
    EXPECT_LE(difference.max().item<double>(), tolerances.at(full).get<double>()) << name << " " << full;
  }
};

std::vector<std::unique_ptr<Case>> cases(const std::string& arch) {
  std::vector<std::unique_ptr<Case>> out;
  const auto folder = std::filesystem::path(golden::folder()) / "hf" / arch;
  std::vector<std::filesystem::path> found;
  if (std::filesystem::is_directory(folder)) {
    for (const auto& entry : std::filesystem::directory_iterator(folder)) found.push_back(entry.path());
  }
  std::sort(found.begin(), found.end());
  for (const auto& path : found) out.push_back(std::make_unique<Case>(path));
  EXPECT_FALSE(out.empty()) << "no cases in " << folder;
  return out;
}

Batch batch_of(const Case& c, const CaseRun& run) {
  Batch batch{c.in(run, "input_ids"), {}};
  if (const Tensor mask = c.in(run, "attention_mask"); mask.defined()) batch.facts["valid"] = mask.eq(1);
  return batch;
}

/// Mean cross entropy over targets that are not -100.
Tensor loss_of(const Tensor& scores, const Tensor& targets) {
  return at::cross_entropy_loss(scores.flatten(0, 1), targets.flatten(), {}, at::Reduction::Mean, -100);
}

void expect_gradients(const Case& c, const CaseRun& run, const Tensor& loss, const std::set<std::string>& except = {}) {
  std::vector<Tensor> some;
  const auto weights = c.model->weights();
  for (const auto& [name, tensor] : weights) some.push_back(tensor);
  const auto found = torch::autograd::grad({loss}, some);
  std::map<std::string, Tensor> ours;
  for (size_t i = 0; i < weights.size(); ++i) ours[weights[i].first] = found[i];
  int64_t compared = 0;
  for (const auto& [key, want] : c.io) {
    const std::string norm = run.prefix + "grad_norm.", whole = run.prefix + "grad.";
    const bool is_norm = key.rfind(norm, 0) == 0;
    if (!is_norm && key.rfind(whole, 0) != 0) continue;
    const std::string theirs = key.substr((is_norm ? norm : whole).size());
    if (except.count(theirs)) continue;
    std::vector<Tensor> parts;
    for (const auto& part : c.imported.names.at(theirs).ours) parts.push_back(ours.at(part));
    Tensor gradient = at::cat(parts);
    if (c.imported.names.at(theirs).transposed) gradient = gradient.t();
    c.expect_close(run, key.substr(run.prefix.size()),
                   is_norm ? gradient.norm().view({1}) : gradient.reshape(want.sizes()));
    ++compared;
  }
  EXPECT_GT(compared, 10) << c.name;
}

/// out.hidden.0 is what enters the first layer, out.hidden.i what leaves layer i, counted from 1; the last one comes
/// after the norm. Where the embedding is not shown, out.hidden.0 leaves the first layer, and so on.
void expect_hidden(const Case& c, const CaseRun& run, const Batch& batch) {
  const auto modules = c.model->named_modules("", false);
  Pass pass{batch};
  pass.position = at::arange(batch.tokens.size(1)).expand(batch.tokens.sizes());
  Tensor x = std::dynamic_pointer_cast<Input>(modules["input"])->embed(pass);
  const int64_t shown = c.imported.embedding_shown ? 1 : 0;
  if (shown == 1) c.expect_close(run, "out.hidden.0", x);
  for (int64_t i = 0; i + shown < c.imported.size.depth; ++i) {
    x = std::dynamic_pointer_cast<Layer>(modules["layers." + std::to_string(i)])->forward(x, pass, nullptr);
    c.expect_close(run, "out.hidden." + std::to_string(i + shown), x);
  }
  Pass last{batch};
  c.expect_close(run, "out.hidden." + std::to_string(c.imported.size.depth), c.model->hidden(last));
}

void expect_forward(const Case& c, const CaseRun& run) {
  const Batch batch = batch_of(c, run);
  Pass pass{batch};
  const Tensor scores = c.model->forward(pass);
  c.expect_close(run, "out.logits", scores);
  if (run.options.value("hidden", false)) expect_hidden(c, run, batch);
  if (const Tensor targets = c.in(run, "targets"); targets.defined()) {
    const Tensor loss = loss_of(scores, targets);
    c.expect_close(run, "out.loss", loss);
    expect_gradients(c, run, loss);
  }
}

/// The states of Mamba layers, if the run has them: theirs keep as many inputs of the convolution as it has taps, and
/// Mamba-2's lie the other way round.
void expect_mamba_states(const Case& c, const CaseRun& run, const State& state, const std::string& when) {
  for (int64_t i = 0; i < c.imported.size.depth; ++i) {
    const std::string conv = text("out.", when, ".conv_state.", i), ssm = text("out.", when, ".ssm_state.", i);
    if (!c.io.count(run.prefix + conv)) return;
    const auto& ours = state.parts.at(text("layer.", i)).parts.at("branch.0").tensors;
    const Tensor want = c.io.at(run.prefix + conv), past = ours.at("past");
    EXPECT_LE((past - want.narrow(-1, want.size(-1) - past.size(-1), past.size(-1))).abs().max().item<double>(),
              c.tolerances.at(run.prefix + conv).get<double>())
        << c.name << " " << conv;
    c.expect_close(run, ssm, ours.at("state").dim() == 4 ? ours.at("state").transpose(2, 3) : ours.at("state"));
  }
}

void expect_steps(const Case& c, const CaseRun& run) {
  const Tensor ids = c.in(run, "input_ids");
  const int64_t prefill = run.options.at("prefill").get<int64_t>();
  State state = c.model->start(ids.size(0));
  std::vector<Tensor> out{c.model->score({ids.slice(1, 0, prefill), {}}, &state)};
  expect_mamba_states(c, run, state, "prefill");
  for (int64_t t = prefill; t < ids.size(1); ++t) out.push_back(c.model->score({ids.slice(1, t, t + 1), {}}, &state));
  expect_mamba_states(c, run, state, "final");
  c.expect_close(run, "out.logits", at::cat(out, 1));
}

void expect_greedy(const Case& c, const CaseRun& run) {
  const Tensor ids = c.in(run, "input_ids"), want = c.io.at(run.prefix + "out.generated_ids");
  State state = c.model->start(ids.size(0));
  std::vector<Tensor> said{ids}, top;
  Tensor scores = c.model->score({ids, {}}, &state);
  for (int64_t t = ids.size(1); t < want.size(1); ++t) {
    const auto best = scores.select(1, -1).max(-1, true);  // [1, 1]
    top.push_back(std::get<0>(best));
    said.push_back(std::get<1>(best));
    scores = c.model->score({said.back(), {}}, &state);
  }
  EXPECT_TRUE(at::cat(said, 1).equal(want)) << c.name;
  c.expect_close(run, "out.top_logit", at::cat(top, 1));
}

void expect_runs(const std::string& arch) {
  int64_t built = 0;
  for (const auto& c : cases(arch)) {
    if (!c->imported.why_not.empty()) {
      std::cout << c->name << " is not built: " << c->imported.why_not << "\n";
      continue;
    }
    ++built;
    for (const CaseRun& run : c->runs) {
      SCOPED_TRACE(c->name + " " + run.prefix);
      c->build(run);
      if (run.runner == "fwd" || run.runner == "rope") {
        expect_forward(*c, run);
      } else if (run.runner == "cache_steps" || run.runner == "mamba_steps") {
        expect_steps(*c, run);
      } else if (run.runner == "greedy") {
        expect_greedy(*c, run);
      } else {
        ADD_FAILURE() << "no way to do a run " << run.runner;
      }
    }
  }
  EXPECT_GT(built, 0) << arch;
}

TEST(HuggingFace, Gpt2) { expect_runs("gpt2"); }
TEST(HuggingFace, Llama) { expect_runs("llama"); }
TEST(HuggingFace, Mamba) { expect_runs("mamba"); }
TEST(HuggingFace, Mamba2) { expect_runs("mamba2"); }
TEST(HuggingFace, Mpt) { expect_runs("mpt"); }

/// The published memory holds a layer's raw inputs, and pre-norm layers normalise them as they are read; ours holds
/// what the branch reads, so normalised ones. A row of zeros is then a row of the norm's bias.
State primed(const Case& c, int64_t batch) {
  State state = c.model->start(batch);
  at::NoGradGuard guard;
  const auto weights = c.model->named_parameters();
  for (int64_t i = 0; i < c.imported.size.depth; ++i) {
    const std::string layer = "layers." + std::to_string(i);
    Tensor rows = remembered(state, i);
    rows.copy_(weights[layer + ".before.0.bias"].expand_as(rows));
  }
  return state;
}

TEST(HuggingFace, TransformerXl) {
  int64_t built = 0;
  for (const auto& c : cases("transfo_xl")) {
    if (!c->imported.why_not.empty()) {
      std::cout << c->name << " is not built: " << c->imported.why_not << "\n";
      continue;
    }
    ++built;
    const CaseRun& run = c->runs.at(0);
    const Tensor ids = c->in(run, "input_ids"), targets = c->in(run, "targets");
    const auto lengths = run.options.at("segments").get<std::vector<int64_t>>();
    const int64_t B = ids.size(0), L = ids.size(1), depth = c->imported.size.depth;
    // As published, a call a segment; and the same numbers from one call, and from calls that cut segments.
    std::vector<std::vector<int64_t>> ways{lengths, {L}, {5, 14, L - 19}};
    for (const auto& way : ways) {
      SCOPED_TRACE(::testing::PrintToString(way));
      State state = primed(*c, B);
      std::vector<Tensor> parts;
      int64_t from = 0;
      for (const int64_t length : way) {
        const Batch batch{ids.slice(1, from, from + length), {}};
        Pass pass{batch};
        pass.state = &state;
        parts.push_back(c->model->forward(pass).log_softmax(-1));
        from += length;
      }
      ASSERT_EQ(from, L);
      const Tensor all = at::cat(parts, 1);  // [B, L, V]
      from = 0;
      for (size_t s = 0; s < lengths.size(); ++s) {
        c->expect_close(run, "out.seg" + std::to_string(s) + ".logprobs", all.slice(1, from, from + lengths[s]));
        from += lengths[s];
      }
      const Tensor loss = loss_of(all, targets);
      c->expect_close(run, "out.loss", loss);
      // The norms before attention: theirs also get a gradient from the remembered rows, which they normalise anew;
      // ours are constants by then.
      std::set<std::string> norms;
      for (int64_t i = 0; i < depth; ++i) {
        for (const char* what : {"weight", "bias"}) {
          norms.insert("transformer.layers." + std::to_string(i) + ".dec_attn.layer_norm." + what);
        }
      }
      expect_gradients(*c, run, loss, norms);
      const auto modules = c->model->named_modules("", false);
      const auto weights = c->model->named_parameters();
      for (int64_t i = 0; i < depth; ++i) {
        const Tensor raw = c->io.at("out.final_mem." + std::to_string(i)), kept = remembered(state, i);
        const std::string norm = "layers." + std::to_string(i) + ".before.0.";
        const Tensor want = at::layer_norm(raw, {raw.size(2)}, weights[norm + "weight"], weights[norm + "bias"], 1e-5);
        const Tensor newest = kept.slice(1, kept.size(1) - raw.size(1));
        EXPECT_LE((newest - want).abs().max().item<double>(),
                  10 * c->tolerances.at("out.final_mem." + std::to_string(i)).get<double>());
      }
    }
  }
  EXPECT_GT(built, 0);
}

}  // namespace
}  // namespace kinfolk::hf
