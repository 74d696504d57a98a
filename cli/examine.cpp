#include "cli/examine.h"

#include <fstream>

#include "cli/store.h"
#include "kinfolk/core/errors.h"
#include "kinfolk/core/file_writer.h"
#include "kinfolk/eval/generate.h"
#include "kinfolk/eval/perplexity.h"
#include "kinfolk/eval/remember.h"
#include "kinfolk/eval/sight.h"
#include "kinfolk/eval/throughput.h"
#include "kinfolk/train/checkpoint.h"
#include "kinfolk/train/progress.h"

namespace kinfolk {
namespace {

using nlohmann::json;
constexpr int64_t kSearched = 8192;  // tokens scored where each searches a datastore
constexpr int64_t kCells = 64;       // of the picture of who sees whom

/// Text as JSON can hold it: what is not UTF-8 becomes the replacement character.
json words(const std::string& text) {
  return json::parse(json(text).dump(-1, ' ', false, json::error_handler_t::replace));
}

void add_scores(json& out, Model& model, const Corpus& corpus, const Examination& wanted, const std::string& name) {
  ScoreOptions options;
  options.lengths = wanted.lengths;
  options.tokens = model.head().wants_store() ? std::min(wanted.tokens, kSearched) : wanted.tokens;
  Progress progress("score " + name, 1.0);
  options.progress = [&](double share) { progress.update(share); };
  if (wanted.windows > 0) {
    options.windows = wanted.windows, options.last = wanted.last, options.mode = wanted.mode;
    options.lanes = 4;  // the state of a long text is large
  }
  const Scores scores = score(model, corpus.valid.bytes, options);
  for (const auto& s : scores.lengths) {
    json row = {{"length", s.length},    {"bits", s.bits},        {"error", s.error},
                {"mode", s.mode},        {"tokens", s.tokens},    {"speed", s.tokens_per_second},
                {"peak", s.peak_growth}, {"state", s.state_bytes}};
    if (wanted.windows > 0) row["each"] = s.each, row["last"] = s.last_bits;
    out["lengths"].push_back(std::move(row));
  }
  if (wanted.windows > 0 && wanted.apart) {
    ScoreOptions trained;
    trained.lengths = {model.size().context};
    trained.tokens = wanted.tokens;
    const LengthScore found = score(model, corpus.valid.bytes, trained).lengths[0];
    out["trained"] = {{"bits", found.bits}, {"error", found.error}};
  }
  for (const auto& p : scores.positions) {
    out["positions"].push_back({{"from", p.from}, {"to", p.to}, {"bits", p.bits}, {"error", p.error}});
  }
}

void add_speed(json& out, Model& model, const std::vector<int64_t>& lengths, const std::string& name) {
  Progress progress("speed " + name, static_cast<double>(lengths.size()));
  out["speed"] = json::array();
  for (size_t i = 0; i < lengths.size(); ++i) {
    progress.update(static_cast<double>(i));
    for (const auto& t : measure(model, {lengths[i]}, 512, true)) {
      out["speed"].push_back({{"length", t.length},
                              {"train", t.train},
                              {"read", t.read},
                              {"decode", t.decode},
                              {"state", t.state_bytes},
                              {"train_peak", t.train_peak},
                              {"read_peak", t.read_peak}});
    }
  }
}

void add_sight(json& out, Model& model, const Bytes& text) {
  const int64_t window =
      std::min<int64_t>(model.size().context * (model.traits().context > 0 ? 1 : 2), static_cast<int64_t>(text.size()));
  const int64_t cells = std::min(kCells, window);
  const Tensor seen =
      sight(model, gather_tokens(text, {0}, 0, window).squeeze(0), cells).to(at::kFloat).sqrt().contiguous();
  out["sight"] = std::vector<float>(seen.const_data_ptr<float>(), seen.const_data_ptr<float>() + seen.numel());
  out["sight_length"] = window;
  out["sight_cells"] = cells;
}

}  // namespace

json examine(const std::filesystem::path& run, const Corpus& corpus, const Examination& wanted, int64_t steps) {
  const auto kept = run / (wanted.name.empty() ? "examined.json" : "examined-" + wanted.name + ".json");
  json asked = {{"lengths", wanted.lengths}, {"tokens", wanted.tokens}, {"prompt", words(wanted.prompt)},
                {"full", wanted.full},       {"steps", steps},          {"text", corpus.valid.fingerprint()}};
  if (wanted.windows > 0) {
    asked["windows"] = wanted.windows, asked["last"] = wanted.last, asked["mode"] = wanted.mode;
    asked["sets"] = wanted.sets;
  }
  if (std::ifstream in(kept); in) {
    const json before = json::parse(in, nullptr, false);  // torn or foreign: made anew
    if (before.is_object() && before.value("asked", json()) == asked) return before;
  }
  auto loaded = load_run(run.string(), true, wanted.sets);
  Model& model = *loaded.model;
  const std::string name = wanted.name.empty() ? run.parent_path().filename().string() : wanted.name;
  if (model.head().wants_store()) {
    Progress progress("store " + name, 1.0);
    fill_store(model, corpus.train.bytes, kStored, [&](double share) { progress.update(share); });
  }
  json out;
  out["asked"] = asked;
  add_scores(out, model, corpus, wanted, name);
  if (wanted.full) {
    GenerateOptions generating;
    generating.tokens = 300;
    const Generated sample = generate(model, wanted.prompt, generating);
    out["sample"] = words(sample.text);
    out["policy"] = sample.policy;
    add_speed(out, model, wanted.lengths, name);
    add_sight(out, model, corpus.valid.bytes);
  }
  write_file(kept.string(), out.dump());
  // What is not finite is null in the file: the same now as when it is read again.
  return json::parse(out.dump());
}

}  // namespace kinfolk
