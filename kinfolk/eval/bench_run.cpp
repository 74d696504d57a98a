#include "kinfolk/eval/bench_run.h"

#include <torch/csrc/autograd/autograd.h>

#include <nlohmann/json.hpp>

#include "kinfolk/core/errors.h"
#include "kinfolk/core/memory.h"

namespace kinfolk {
namespace {

constexpr int64_t kSide = 1024;                    // of the products beside which rates are shown
constexpr int64_t kRows = 16384, kColumns = 4096;  // of the matrix that is read, far beyond any cache

std::string number(const char* format, double value) {
  char out[64];
  std::snprintf(out, sizeof out, format, value);
  return out;
}

std::string amount(double value, const std::string& unit) {
  if (unit == "s") {
    if (value < 1e-3) return number("%.2f us", 1e6 * value);
    return number(value < 1 ? "%.2f ms" : "%.0f ms", 1e3 * value);
  }
  if (unit == "B") return number("%.1f MiB", value / 1048576);
  return number("%.1e", value);
}

std::string goal_text(const std::optional<Goal>& goal) {
  return goal ? number(goal->at_most ? "<= %.3g" : ">= %.3g", goal->bound) : "";
}

}  // namespace

std::string bench_heading() {
  char out[256];
  std::snprintf(out, sizeof out, "%-44s %7s %11s   %-22s %11s %8s %8s  %s", "case", "length", "ours", "beside", "",
                "ratio", "goal", "rate, and the machine's own in the same rounds");
  return out;
}

std::string bench_line(const BenchRow& row) {
  char out[256];
  std::snprintf(out, sizeof out, "%-44s %7lld %11s   %-22s %11s %8.2f %8s", row.what.c_str(),
                static_cast<long long>(row.length), amount(row.ours, row.unit).c_str(), row.other.c_str(),
                amount(row.theirs, row.unit).c_str(), row.ratio, goal_text(row.goal).c_str());
  std::string line = out;
  if (!row.met()) line += " !";
  if (row.limit > 0) {
    line += row.met() ? "   " : " ";
    if (row.rate > 0) line += number("%.0f", row.rate) + " = " + number("%.2f", row.rate / row.limit) + " of ";
    line += number("%.0f ", row.limit) + row.rate_unit;
  }
  return line;
}

std::string bench_json(const std::vector<BenchRow>& rows) {
  nlohmann::json out = nlohmann::json::array();
  for (const BenchRow& row : rows) {
    nlohmann::json one = {{"group", row.group}, {"what", row.what},   {"length", row.length},
                          {"unit", row.unit},   {"ours", row.ours},   {"theirs", row.theirs},
                          {"other", row.other}, {"ratio", row.ratio}, {"rounds", row.rounds}};
    if (row.goal) one["goal"] = goal_text(row.goal), one["met"] = row.met();
    if (row.limit > 0) one["rate_unit"] = row.rate_unit, one["rate"] = row.rate, one["limit"] = row.limit;
    out.push_back(one);
  }
  return out.dump(1);
}

std::function<void()> forward_of(const Side& side) {
  return [side] {
    const at::NoGradGuard guard;
    side.out();
  };
}

std::function<void()> both_of(const Side& side) {
  return [side] {
    const Tensor out = side.out();
    torch::autograd::grad({out}, side.leaves, {at::ones_like(out)}, false, false, true);
  };
}

bool BenchRun::wants(const std::string& group) {
  group_ = group;
  return options_.groups.empty() ||
         std::find(options_.groups.begin(), options_.groups.end(), group) != options_.groups.end();
}

std::vector<int64_t> BenchRun::lengths(const std::vector<int64_t>& quick, const std::vector<int64_t>& more) const {
  if (!options_.lengths.empty()) return options_.lengths;
  std::vector<int64_t> all = quick;
  if (options_.full) all.insert(all.end(), more.begin(), more.end());
  return all;
}

std::pair<int64_t, int64_t> BenchRun::stretch(int64_t shorter, int64_t longer) const {
  if (options_.lengths.empty()) return {shorter, longer};
  const auto [least, most] = std::minmax_element(options_.lengths.begin(), options_.lengths.end());
  return {*least, *most};
}

Turns BenchRun::turns(const std::string& what) const {
  Turns turns;
  turns.seconds = options_.full ? 5 : 0.5, turns.once = options_.full ? 20 : 2, turns.most = options_.full ? 25 : 5;
  turns.wall = options_.wall;
  if (options_.note) {
    options_.note(what);
    turns.note = [this, what](int64_t, int64_t) { options_.note(what); };
  }
  return turns;
}

std::function<void()> BenchRun::product(bool half) {
  Tensor &a = half ? half_a_ : a_, &b = half ? half_b_ : b_, &c = half ? half_c_ : c_;
  if (!a.defined()) {
    const auto type = half ? at::kBFloat16 : at::kFloat;
    a = at::randn({kSide, kSide}).to(type), b = at::randn({kSide, kSide}).to(type), c = at::empty_like(a);
  }
  return [=]() mutable {
    const at::NoGradGuard guard;
    at::mm_out(c, a, b);
  };
}

std::function<void()> BenchRun::reading() {
  if (!wide_.defined()) wide_ = at::ones({kRows, kColumns}), thin_ = at::ones({kColumns}), sums_ = at::empty({kRows});
  return [this] {
    const at::NoGradGuard guard;
    at::mv_out(sums_, wide_, thin_);
  };
}

void BenchRun::add(BenchRow row) {
  row.group = group_;
  if (!options_.lengths.empty()) row.goal.reset();
  if (options_.row) options_.row(row);
}

void BenchRun::contest(const Contest& c, const Side& ours, const Side& theirs) {
  const auto one = [&](const char* way, const std::function<void()>& a, const std::function<void()>& b, double flops,
                       std::optional<Goal> goal) {
    const std::string what = c.what + way;
    const Interleaved got = interleave({a, b, product(c.half)}, turns(text(what, " ", c.length)));
    BenchRow row;
    row.what = what, row.length = c.length, row.unit = "s", row.other = c.other;
    row.ours = got.time(0), row.theirs = c.scale * got.time(1), row.ratio = c.scale * got.ratio(1, 0), row.goal = goal;
    row.rate_unit = "GFLOP/s", row.rate = flops / row.ours / 1e9, row.rounds = got.rounds();
    row.limit = 2e-9 * static_cast<double>(kSide * kSide * kSide) / got.time(2);
    add(row);
  };
  if (c.forward) one(", forward", forward_of(ours), forward_of(theirs), c.forward_flops, c.forward_goal);
  if (c.both) one(", with backward", both_of(ours), both_of(theirs), c.both_flops, c.both_goal);
}

void BenchRun::step(const std::string& what, int64_t length, const std::string& other, double bytes,
                    const std::function<void()>& ours, const std::function<void()>& theirs, std::optional<Goal> goal) {
  const at::NoGradGuard guard;
  std::vector<std::function<void()>> runs = {ours, theirs};
  if (bytes > 0) runs.push_back(reading());
  const Interleaved got = interleave(runs, turns(text(what, " ", length)));
  BenchRow row;
  row.what = what, row.length = length, row.unit = "s", row.other = other;
  row.ours = got.time(0), row.theirs = got.time(1), row.ratio = got.ratio(1, 0), row.goal = goal;
  row.rounds = got.rounds();
  if (bytes > 0) {
    row.rate_unit = "GB/s", row.rate = bytes / row.ours / 1e9;
    row.limit = 4e-9 * static_cast<double>(kRows * kColumns) / got.time(2);
  }
  add(row);
}

void BenchRun::growth(const std::string& what, std::pair<int64_t, int64_t> lengths, double most,
                      const std::function<void(bool longer)>& run) {
  const auto [shorter, longer] = lengths;
  if (shorter == longer) return;
  const Interleaved got =
      interleave({[&] { run(true); }, [&] { run(false); }}, turns(text(what, " ", shorter, " and ", longer)));
  const double n = static_cast<double>(shorter), m = static_cast<double>(longer);
  BenchRow row;
  row.what = what, row.length = longer, row.unit = "s", row.other = text("a token at ", shorter);
  row.ours = got.time(0) / m, row.theirs = got.time(1) / n, row.ratio = got.ratio(0, 1) * n / m;
  row.goal = Goal{most, true}, row.rounds = got.rounds();
  add(row);
}

int64_t BenchRun::peak(const std::function<void()>& run) {
  reset_peak();
  const int64_t before = resident_bytes();
  run();
  return std::max<int64_t>(0, peak_resident_bytes() - before);
}

}  // namespace kinfolk
