#include "kinfolk/eval/remember.h"

#include "kinfolk/core/errors.h"

namespace kinfolk {
namespace {

constexpr int64_t kWindows = 8;  // read side by side

struct Evaluating {  // back to training however the call ends
  Model& model;
  const bool was = model.is_training();
  explicit Evaluating(Model& m) : model(m) { model.eval(); }
  ~Evaluating() { model.train(was); }
};

/// [n] tokens from a place on.
Tensor tokens_of(std::span<const uint8_t> text, int64_t from, int64_t n) {
  const Tensor out = at::empty({n}, at::kLong);
  auto* data = out.mutable_data_ptr<int64_t>();
  for (int64_t i = 0; i < n; ++i) data[i] = text[static_cast<size_t>(from + i)];
  return out;
}

}  // namespace

void each_hidden(Model& model, std::span<const uint8_t> text, int64_t limit, const HiddenSink& sink,
                 const std::function<void(double)>& progress) {
  const at::NoGradGuard guard;
  const Evaluating evaluating(model);
  const Traits traits = model.traits();
  const int64_t context = model.size().context, entries = std::min(limit, static_cast<int64_t>(text.size()) - 1);
  const auto say = [&](int64_t done) {
    if (progress) progress(static_cast<double>(done) / static_cast<double>(std::max<int64_t>(entries, 1)));
  };
  const auto flat = [](const Tensor& hidden) { return hidden.reshape({-1, hidden.size(-1)}); };
  if (traits.streams && traits.bounded && traits.context == 0) {
    State state = model.start(1);
    for (int64_t at = 0; at < entries; at += context) {
      const int64_t n = std::min(context, entries - at);
      const Batch batch{tokens_of(text, at, n).unsqueeze(0), {}};
      Pass pass{batch};
      pass.state = &state;
      sink(flat(model.hidden(pass)), tokens_of(text, at + 1, n));
      say(at + n);
    }
    return;
  }
  // The first window answers for all its bytes, any other for its last `fresh`, the last of all for what is left.
  const int64_t window = std::min(context, entries), fresh = std::max<int64_t>(1, context / 2);
  for (int64_t at = 0; at < entries;) {
    const int64_t whole = std::min(kWindows, (entries - at) / fresh);
    std::vector<Tensor> rows;
    int64_t skip = 0;
    if (at == 0) {
      rows.push_back(tokens_of(text, 0, window));
    } else if (whole == 0) {
      rows.push_back(tokens_of(text, entries - window, window));
      skip = at - (entries - window);
    } else {
      skip = window - fresh;
      for (int64_t w = 0; w < whole; ++w) rows.push_back(tokens_of(text, at + w * fresh - skip, window));
    }
    const Batch batch{at::stack(rows), {}};
    Pass pass{batch};
    const Tensor hidden = flat(model.hidden(pass).slice(1, skip));
    sink(hidden, tokens_of(text, at + 1, hidden.size(0)));
    at += hidden.size(0);
    say(at);
  }
}

void fill_store(Model& model, std::span<const uint8_t> text, int64_t limit,
                const std::function<void(double)>& progress) {
  each_hidden(
      model, text, limit, [&](const Tensor& hidden, const Tensor& next) { model.head().remember(hidden, next); },
      progress);
}

void check_keys(Model& model, const Datastore& store) {
  store.check(model);
  const auto texts = store.texts();
  if (texts.empty() || texts[0].count < 1) return;
  const StoredText& first = texts[0];
  // What was read in overlapping windows is read in the same: the first of them, and whole halves.
  const int64_t context = model.size().context, half = std::max<int64_t>(1, context / 2);
  int64_t count = std::min(first.count, 4 * context);
  if (count < first.count) count = context + (count - context) / half * half;
  const Tensor which = at::arange(first.first, first.first + count, at::kLong);
  const Tensor keys = store.keys(which), tokens = store.tokens(which);  // [n, D], [n]
  std::vector<uint8_t> bytes{static_cast<uint8_t>(first.begin)};
  for (int64_t i = 0; i < count; ++i) bytes.push_back(static_cast<uint8_t>(tokens.const_data_ptr<int64_t>()[i]));
  std::vector<Tensor> rows;
  each_hidden(model, bytes, count,
              [&](const Tensor& hidden, const Tensor&) { rows.push_back(hidden.to(at::kCPU, at::kFloat)); });
  const Tensor hidden = at::cat(rows);  // [n, D]
  // Beyond rounding of the keys; a bucket or a neighbour that falls out otherwise on another machine is no other model.
  constexpr double kOff = 0.02, kShare = 0.02;
  const Tensor off = (hidden - keys).norm(2, -1).gt(kOff * hidden.norm(2, -1)).logical_or(keys.isnan().any(-1));
  const auto wrong = off.sum().item<int64_t>();
  if (static_cast<double>(wrong) <= kShare * static_cast<double>(count)) return;
  fail("[datastore] ", store.folder(), ": expected the hidden states of this model as it is set here; found ", wrong,
       " of the first ", count, " that are others: it was built with other settings (a window, a memory, --set), or ",
       "its files were changed");
}

int64_t store_document(Model& model, const std::string& path, std::span<const uint8_t> bytes, int64_t limit,
                       DatastoreWriter& writer, const std::function<void(double)>& progress) {
  if (bytes.size() < 2 || limit < 1) return 0;
  const int64_t before = writer.appended();
  writer.begin(path, bytes[0]);
  each_hidden(
      model, bytes, limit, [&](const Tensor& hidden, const Tensor& next) { writer.append(hidden, next); }, progress);
  return writer.appended() - before;
}

}  // namespace kinfolk
