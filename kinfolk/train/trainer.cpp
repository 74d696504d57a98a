#include "kinfolk/train/trainer.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <chrono>
#include <cinttypes>
#include <cstdio>
#include <limits>
#include <nlohmann/json.hpp>
#include <numbers>

#include "kinfolk/core/errors.h"
#include "kinfolk/core/file_writer.h"
#include "kinfolk/core/memory.h"
#include "kinfolk/train/carry.h"
#include "kinfolk/train/data/images.h"
#include "kinfolk/train/data/recall.h"
#include "kinfolk/train/events.h"
#include "kinfolk/train/gradient.h"
#include "kinfolk/train/interrupt.h"
#include "kinfolk/train/optim.h"
#include "kinfolk/train/progress.h"
#include "kinfolk/train/run_folder.h"
#include "kinfolk/train/schedule.h"
#include "kinfolk/train/start_from.h"
#include "kinfolk/train/validate.h"

namespace kinfolk {
namespace {

using Clock = std::chrono::steady_clock;

/// The part of a recipe that makes the member: settings and words may change in a resumed run.
std::string member_text(const Recipe& recipe, Size size) {
  Value tree = recipe.tree;
  for (const char* key : {"train", "about", "article"}) tree.erase(key);
  size.dropout = 0;
  return write_toml(tree) + "\n[size]\n" + write_toml(write_options(size));
}

/// The first line in which two texts differ, for messages.
std::string first_difference(const std::string& before, const std::string& now) {
  std::istringstream a(before), b(now);
  std::string x, y;
  for (;;) {
    const bool more = static_cast<bool>(std::getline(a, x)), others = static_cast<bool>(std::getline(b, y));
    if (!more) x = "nothing";
    if (!others) y = "nothing";
    if (x != y || (!more && !others)) return text("`", x, "` before, `", y, "` now");
  }
}

std::string fingerprint_text(uint64_t value) {
  char out[24];
  std::snprintf(out, sizeof out, "%016" PRIx64, value);
  return out;
}

std::string short_number(double value) {
  char out[32];
  const char* unit = value >= 1e9 ? "G" : value >= 1e6 ? "M" : value >= 1e3 ? "k" : "";
  std::snprintf(out, sizeof out, "%.3g%s",
                value / (value >= 1e9   ? 1e9
                         : value >= 1e6 ? 1e6
                         : value >= 1e3 ? 1e3
                                        : 1),
                unit);
  return out;
}

AdamW::Options optimiser_options(const TrainSettings& s) {
  AdamW::Options options;
  options.beta1 = s.beta1;
  options.beta2 = s.beta2;
  options.epsilon = s.epsilon;
  options.decay = s.weight_decay;
  options.clip = s.clip;
  return options;
}

class Trainer {
 public:
  Trainer(const Recipe& recipe, const Size& size, const TrainSettings& settings, const Corpus& corpus,
          const std::string& out, const TrainHooks& hooks)
      : settings_(settings),
        corpus_(corpus),
        hooks_(hooks),
        objective_(make_objective(recipe)),
        record_{recipe, size, settings,     {}, corpus.path, corpus.split, fingerprint_text(corpus.train.fingerprint()),
                "all",  "",   corpus.images},
        point_(record_.point) {
    check_settings(settings);
    record_.size = size_for(size_for(size, corpus.images), corpus.recall);
    record_.size.dropout = settings.dropout;
    if (!corpus.recall.any()) {
      for (const Text* text : {&corpus.train, &corpus.valid}) check_vocabulary(*text);
    }
    make_model(out);  // before the folder: what cannot be built leaves nothing behind
    folder_ = std::make_unique<RunFolder>(out, hooks.resume);
    folder_->write_configuration(record_);
    log_ = std::make_unique<RunLog>(folder_->file("log.jsonl"), resumed_ ? point_.step : -1);
    if (settings.events) events_ = std::make_unique<EventWriter>(out);
  }

  TrainResult run() {
    const Interrupt interrupt;
    Progress bar(hooks_.title.empty() ? "train " + record_.recipe.name : hooks_.title, budget());
    bar_ = hooks_.quiet ? nullptr : &bar;
    bar.start_at(spent());
    started_at_ = point_.seconds;
    started_tokens_ = point_.tokens;
    window_start_ = {point_.tokens, point_.seconds};
    if (resumed_) say(text("resumed at step ", point_.step, ", ", point_.tokens, " tokens"));
    if (!begun_.empty()) say(begun_);
    int64_t saved = resumed_ ? point_.step : -1;
    bool stop = false;
    for (;;) {
      const bool done = finished();
      const bool due =
          point_.step == 0 || done || (settings_.eval_every > 0 && point_.step % settings_.eval_every == 0);
      if (due && !stop && point_.validated != point_.step) run_validation();
      stop = stop || Interrupt::signal() != 0;
      const bool save = settings_.save_every > 0 && point_.step > 0 && point_.step % settings_.save_every == 0;
      if ((save || done || stop) && saved != point_.step) {
        save_checkpoint(folder_->last(), *model_, optimiser_.get(), states_, record_);
        folder_->keep_numbered(point_.step, settings_.keep);
        saved = point_.step;
      }
      if (done || stop) break;
      step();
      stop = hooks_.on_step && hooks_.on_step(point_.step);
    }
    bar.finish();
    bar_ = nullptr;
    return result(Interrupt::signal());
  }

 private:
  void check_vocabulary(const Text& text) const {
    if (text.bytes.empty())
      refuse("[data] ", corpus_.path, ": expected bytes that train and bytes that validate; found none");
    const int64_t highest = *std::max_element(text.bytes.begin(), text.bytes.end());
    if (highest >= record_.size.vocabulary) {
      refuse("[data] ", corpus_.path, ": expected bytes below size.vocabulary = ", record_.size.vocabulary, "; found ",
             highest);
    }
  }

  void make_model(const std::string& out) {
    const std::string last = (std::filesystem::path(out) / "checkpoints" / "last.safetensors").string();
    if (hooks_.freeze && hooks_.from.empty()) {
      refuse("[freeze] expected it with a run to begin from, whose tensors stay as they are; found none");
    }
    if (hooks_.resume && std::filesystem::exists(last)) {
      resume_from(last, out);
    } else {
      model_ = Model::make(record_.recipe, record_.size, static_cast<uint64_t>(settings_.seed));
      if (!hooks_.from.empty()) begin_from();
      optimiser_ = std::make_unique<AdamW>(model_->weights(), optimiser_options(settings_));
    }
    const Traits traits = model_->traits();
    if (traits.context > 0 && settings_.length > traits.context) {
      refuse("[train.length] expected at most ", traits.context, ", the longest this member takes; found ",
             settings_.length);
    }
    source_ = training_source(corpus_, settings_, model_->grid());
    carries_ = traits.carries && !source_->whole();
    if (carries_ && states_.empty()) start_states();
    model_->train();
    model_->checkpointing = settings_.checkpointing;
    if (hooks_.on_model) hooks_.on_model(*model_);
    if (hooks_.on_text) hooks_.on_text(*model_, corpus_.train);
  }

  static std::string canonical(const std::string& run) {
    return std::filesystem::weakly_canonical(checkpoint_of(run)).string();
  }

  void begin_from() {
    record_.from = canonical(hooks_.from);
    const StartedFrom started = start_from(*model_, record_.from);
    begun_ = text("begins from ", record_.from, ": ", describe(started));
    if (!hooks_.freeze) return;
    freeze(*model_, started.taken);
    record_.frozen = started.taken;
    begun_ += text("; what was taken is frozen, ", model_->parameter_count(), " parameters learn");
  }

  void resume_from(const std::string& last, const std::string& out) {
    LoadedTraining before = load_training(last, settings_.dropout);
    const RunRecord& old = before.run.record;
    std::string found;
    const std::string was = member_text(old.recipe, old.size), is = member_text(record_.recipe, record_.size);
    if (was != is) found = first_difference(was, is);
    for (const auto& difference : fixed_differences(old.settings, settings_))
      found += (found.empty() ? "" : "; ") + difference;
    if (old.fingerprint != record_.fingerprint) {
      found += text(found.empty() ? "" : "; ", "another training text (", old.data, " before, ", record_.data, " now)");
    }
    if (!found.empty()) {
      std::string may;
      for (const auto& key : changeable_settings()) may += " " + key;
      refuse("[resume] ", out, ": expected the member, data and order that the run began with; found ", found,
             ". May change:", may);
    }
    if (!hooks_.from.empty() && canonical(hooks_.from) != old.from) {
      refuse("[from] ", out, ": expected ", old.from.empty() ? "none, since the run began from nothing" : old.from,
             ", from which the run began; found ", canonical(hooks_.from));
    }
    if (hooks_.freeze && old.frozen.empty()) {
      refuse("[freeze] ", out, ": expected none, since the run began without it; found it");
    }
    point_ = old.point;
    record_.from = old.from, record_.frozen = old.frozen;
    model_ = before.run.model;
    if (!old.frozen.empty()) freeze(*model_, old.frozen);
    states_ = std::move(before.states);
    optimiser_ = std::make_unique<AdamW>(model_->weights(), optimiser_options(settings_));
    optimiser_->load_moments(before.moments);
    resumed_ = true;
  }

  void start_states() {
    states_.clear();
    for (int64_t part = 0; part < settings_.accumulate; ++part) {
      states_.push_back(model_->start(settings_.lanes / settings_.accumulate));
    }
  }

  int64_t carried_steps(int64_t lane) const {
    return carries_ ? Carry{settings_.carry, settings_.length, settings_.lanes}.steps(point_.step, lane) : 0;
  }

  void restart_lanes() {
    if (!carries_ || settings_.carry == 0) return;
    const int64_t each = settings_.lanes / settings_.accumulate;
    State fresh;
    for (int64_t lane = 0; lane < settings_.lanes; ++lane) {
      if (carried_steps(lane) != 0) continue;
      if (fresh.empty()) fresh = model_->start(1);
      states_[static_cast<size_t>(lane / each)].put_lane(lane % each, fresh);
    }
  }

  // --- budget
  double budget() const {
    return settings_.tokens > 0 ? static_cast<double>(settings_.tokens)
           : settings_.work > 0 ? settings_.work
                                : settings_.minutes * 60;
  }
  double spent() const {
    return settings_.tokens > 0 ? static_cast<double>(point_.tokens)
           : settings_.work > 0 ? point_.work
                                : point_.seconds;
  }
  int64_t next_length() const {
    if (settings_.tokens <= 0) return settings_.length;
    const int64_t left = std::max<int64_t>((settings_.tokens - point_.tokens) / settings_.lanes, 0);
    if (left < settings_.length && source_->whole()) return 0;
    return std::min(left, settings_.length);
  }
  double work_of(int64_t length) const {
    std::map<int64_t, double> lanes;  // by what they carry
    for (int64_t lane = 0; lane < settings_.lanes; ++lane) lanes[carried_steps(lane)] += 1;
    double sum = 0;
    for (const auto& [steps, count] : lanes) sum += count * model_->flops(length, steps * settings_.length);
    return 3 * sum;
  }
  bool finished() const {
    if (settings_.tokens > 0) return next_length() == 0;
    if (settings_.minutes > 0) return point_.seconds >= settings_.minutes * 60;
    const double next = work_of(settings_.length);
    if (point_.step == 0 && next > settings_.work) {
      refuse("[train.work] expected at least the ", next, " FLOP of one step; found ", settings_.work);
    }
    return point_.work + next > settings_.work;
  }
  /// The share of the budget that is spent after the next step.
  double share_after(int64_t length, double work) const {
    if (settings_.tokens > 0) return (spent() + static_cast<double>(settings_.lanes * length)) / budget();
    if (settings_.work > 0) return (spent() + work) / budget();
    const double each = point_.step > 0 ? point_.seconds / static_cast<double>(point_.step) : 0;
    return (spent() + each) / budget();
  }

  // --- one step
  void step() {
    const auto begin = Clock::now();
    const int64_t length = next_length();
    const double work = work_of(length);
    const double rate = settings_.learning_rate *
                        Schedule{settings_.schedule, settings_.warmup, settings_.floor}.at(share_after(length, work));
    const Batch batch = source_->at(point_.position, length);
    restart_lanes();
    const StepLoss loss = accumulate_gradient(
        *model_, *objective_, batch, settings_.accumulate, states_, settings_.precision == "bf16",
        [&](int64_t part) { return draw_seed(static_cast<uint64_t>(settings_.seed), point_.step, part); });
    AdamW::Report report;
    if (loss.count > 0) report = optimiser_->step(rate, static_cast<double>(loss.count));
    optimiser_->zero_grad();
    if (report.skipped) {
      ++point_.skipped;
      ++point_.bad;
      if (carries_) start_states();
    } else {
      point_.bad = 0;
      for (const auto& update : loss.updates) update();
      point_.window_loss += loss.sum;
      point_.window_count += loss.count;
    }
    ++point_.step;
    point_.position += length;
    point_.tokens += settings_.lanes * length;
    point_.work += work;
    point_.seconds += std::chrono::duration<double>(Clock::now() - begin).count();
    if (point_.step % settings_.log_every == 0 || (report.skipped && point_.bad >= settings_.bad_steps)) {
      log_step(loss, report, rate);
    }
    if (bar_) bar_->update(spent(), text("step ", point_.step));
    if (point_.bad >= settings_.bad_steps) {
      fail("[train] expected a finite gradient; found none in ", point_.bad, " steps in a row, until step ",
           point_.step, " (a lower learning_rate or a longer warmup may help; the last checkpoint stays)");
    }
  }

  void log_step(const StepLoss& loss, const AdamW::Report& report, double rate) {
    LogRow row = row_here();
    row.loss = point_.window_count > 0 ? point_.window_loss / static_cast<double>(point_.window_count) : std::nan("");
    row.bits = row.loss / std::numbers::ln2;
    row.rate = rate;
    row.norm = report.norm;
    row.tokens_per_second = static_cast<double>(point_.tokens - window_start_.tokens) /
                            std::max(point_.seconds - window_start_.seconds, 1e-9);
    for (const auto& [name, sum] : loss.losses) row.losses[name] = sum / static_cast<double>(loss.count);
    point_.window_loss = 0;
    point_.window_count = 0;
    window_start_ = {point_.tokens, point_.seconds};
    write_row(row);
    char line[256];
    std::snprintf(line, sizeof line,
                  "step %" PRId64 "  loss %.4f  %.4f bits/%s  lr %.2e  norm %.2f  %s tokens/s  %s left  %" PRId64
                  " MiB peak%s",
                  row.step, row.loss, row.bits, unit().c_str(), rate, row.norm,
                  short_number(row.tokens_per_second).c_str(), clock_text(seconds_left()).c_str(), row.peak_rss >> 20,
                  report.skipped ? "  (skipped: gradient not finite)" : "");
    say(line);
  }

  double seconds_left() const {
    if (settings_.minutes > 0) return std::max(settings_.minutes * 60 - point_.seconds, 0.0);
    const double gone = point_.seconds - started_at_;
    const double now = spent(), share = now - (settings_.tokens > 0 ? static_cast<double>(started_tokens_) : 0);
    if (settings_.tokens > 0) return share > 0 ? gone * (budget() - now) / share : std::nan("");
    return now > 0 ? point_.seconds * (budget() - now) / now : std::nan("");
  }

  // --- validation and rows
  void run_validation() {
    if (hooks_.on_text) hooks_.on_text(*model_, corpus_.valid);
    const auto seen = validate(*model_, *objective_, corpus_, settings_, [] { return Interrupt::signal() != 0; });
    if (hooks_.on_text) hooks_.on_text(*model_, corpus_.train);
    if (!seen) return;
    point_.validated = point_.step;
    point_.last_bits = seen->bits;
    LogRow row = row_here();
    row.validation = true;
    row.loss = seen->loss;
    row.bits = seen->bits;
    row.accuracy = seen->accuracy;
    write_row(row);
    char line[160];
    const int said = std::snprintf(line, sizeof line, "step %" PRId64 "  validation %.4f bits/%s over %" PRId64 " %ss",
                                   row.step, row.bits, unit().c_str(), seen->tokens, unit().c_str());
    if (corpus_.recall.any()) std::snprintf(line + said, sizeof line - said, ", accuracy %.4f", row.accuracy);
    say(line);
    if (!std::isfinite(row.bits) || (point_.best_step >= 0 && row.bits >= point_.best_bits)) return;
    point_.best_step = point_.step;
    point_.best_bits = row.bits;
    if (point_.step > 0) save_checkpoint(folder_->best(), *model_, nullptr, {}, record_);
  }

  std::string unit() const { return text(objective_->asked(), corpus_.unit()); }  ///< of what bits are counted for

  LogRow row_here() const {
    LogRow row;
    row.pixels = corpus_.images.any();
    row.step = point_.step;
    row.tokens = point_.tokens;
    row.seconds = point_.seconds;
    row.work = point_.work;
    row.skipped = point_.skipped;
    row.peak_rss = peak_resident_bytes();
    return row;
  }

  void write_row(const LogRow& row) {
    log_->add(row);
    if (hooks_.on_row) hooks_.on_row(row);
    if (!events_) return;
    std::string bits = "bits_per_" + unit();
    std::replace(bits.begin(), bits.end(), ' ', '_');
    if (row.validation) {
      events_->scalar(bits + "/valid", row.bits, row.step);
      if (std::isfinite(row.accuracy)) events_->scalar("accuracy/valid", row.accuracy, row.step);
      return;
    }
    events_->scalar(bits + "/train", row.bits, row.step);
    events_->scalar("loss/train", row.loss, row.step);
    events_->scalar("optimiser/learning_rate", row.rate, row.step);
    events_->scalar("optimiser/norm", row.norm, row.step);
    events_->scalar("speed/tokens_per_second", row.tokens_per_second, row.step);
    events_->scalar("speed/peak_rss", static_cast<double>(row.peak_rss), row.step);
    for (const auto& [name, value] : row.losses) events_->scalar("loss/" + name, value, row.step);
  }

  void say(const std::string& line) {
    if (bar_) bar_->say(line);
  }

  TrainResult result(int signal) {
    TrainResult out;
    out.finished = finished();
    out.signal = out.finished ? 0 : signal;
    out.record = record_;
    out.parameters = model_->parameter_count();
    out.peak_rss = peak_resident_bytes();
    out.tokens_per_second = static_cast<double>(point_.tokens) / std::max(point_.seconds, 1e-9);
    out.checkpoint = folder_->last();
    for (auto& row : read_log(folder_->file("log.jsonl")))
      if (row.validation) out.validations.push_back(std::move(row));
    model_->eval();
    out.model = model_;
    nlohmann::ordered_json json = {{"name", record_.recipe.name},
                                   {"finished", out.finished},
                                   {"signal", out.signal},
                                   {"parameters", out.parameters},
                                   {"steps", point_.step},
                                   {"tokens", point_.tokens},
                                   {"seconds", point_.seconds},
                                   {"work", point_.work},
                                   {"skipped", point_.skipped},
                                   {"tokens_per_second", out.tokens_per_second},
                                   {"peak_rss", out.peak_rss},
                                   {corpus_.images.any() ? "valid_bpd" : "valid_bpb", point_.last_bits},
                                   {"valid_step", point_.validated},
                                   {corpus_.images.any() ? "best_bpd" : "best_bpb", point_.best_bits},
                                   {"best_step", point_.best_step},
                                   {"seed", settings_.seed},
                                   {"threads", at::get_num_threads()},
                                   {"data", record_.data},
                                   {"split", record_.data_split}};
    write_file(folder_->file("result.json"),
               json.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n");
    return out;
  }

  const TrainSettings settings_;
  const Corpus& corpus_;
  const TrainHooks& hooks_;
  std::unique_ptr<Source> source_;
  std::shared_ptr<Objective> objective_;
  RunRecord record_;
  RunPoint& point_;  // record_'s
  std::shared_ptr<Model> model_;
  std::unique_ptr<AdamW> optimiser_;
  std::vector<State> states_;
  std::unique_ptr<RunFolder> folder_;
  std::unique_ptr<RunLog> log_;
  std::unique_ptr<EventWriter> events_;
  Progress* bar_ = nullptr;
  std::string begun_;  // what was taken from another run
  bool carries_ = false, resumed_ = false;
  double started_at_ = 0;
  int64_t started_tokens_ = 0;
  struct {
    int64_t tokens = 0;
    double seconds = 0;
  } window_start_;
};

}  // namespace

uint64_t draw_seed(uint64_t seed, int64_t step, int64_t part) {
  uint64_t hash = seed;
  for (const uint64_t next : {static_cast<uint64_t>(step), static_cast<uint64_t>(part)}) {  // splitmix64 (Steele 2014)
    hash += 0x9e3779b97f4a7c15u + next;
    hash = (hash ^ (hash >> 30)) * 0xbf58476d1ce4e5b9u;
    hash = (hash ^ (hash >> 27)) * 0x94d049bb133111ebu;
    hash ^= hash >> 31;
  }
  return hash;
}

TrainResult train(const Recipe& recipe, const Size& size, const TrainSettings& settings, const Corpus& corpus,
                  const std::string& out, const TrainHooks& hooks) {
  return Trainer(recipe, size, settings, corpus, out, hooks).run();
}

}  // namespace kinfolk
