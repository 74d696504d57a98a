#include "kinfolk/eval/verdict.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>

#include "kinfolk/core/errors.h"
#include "kinfolk/eval/markup.h"

namespace kinfolk {
namespace {

/// Two-sided 95 % of Student's t.
double student(int64_t freedom) {
  constexpr double kTable[] = {12.71, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228,
                               2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086};
  if (freedom < 1) return HUGE_VAL;
  return freedom <= static_cast<int64_t>(std::size(kTable)) ? kTable[freedom - 1] : 2.05;
}

double square(double x) { return x * x; }
std::string bits_text(double bits) { return fixed_text(bits, 3); }

std::string joined(const std::vector<std::string>& names) {
  std::string out;
  for (size_t i = 0; i < names.size(); ++i) out += (i == 0 ? "" : i + 1 == names.size() ? " and " : ", ") + names[i];
  return out;
}

std::string by_how_much(double better, double worse) {
  return text(bits_text(worse - better), " bits per byte (", fixed_text(100 * (worse - better) / worse, 1), " %)");
}

struct Best {
  const Report::Member* member = nullptr;
  double value = kNothing;
};

/// The best member by value(member), which may be not a number.
template <class Value>
Best best_of(const Report& report, bool largest, Value&& value) {
  Best best;
  for (const auto& member : report.members) {
    const double now = value(member);
    if (std::isfinite(now) && (!best.member || (largest ? now > best.value : now < best.value))) best = {&member, now};
  }
  return best;
}

/// The largest length that at least two members share beyond the trained one; 0 = none.
int64_t longest_shared(const Report& report) {
  std::map<int64_t, int64_t> found;
  for (const auto& member : report.members)
    for (const auto& point : member.by_length)
      if (point.length > report.trained_length && std::isfinite(point.bits)) ++found[point.length];
  for (auto it = found.rbegin(); it != found.rend(); ++it)
    if (it->second >= 2) return it->first;
  return 0;
}

std::optional<std::string> length_note(const Report& report) {
  const int64_t length = report.trained_length > 0 ? longest_shared(report) : 0;
  if (length == 0) return std::nullopt;
  const auto at = [&](const Report::Member& member) {
    for (const auto& point : member.by_length)
      if (point.length == length) return point;
    return Report::LengthPoint{};
  };
  const Best best = best_of(report, false, [&](const auto& member) { return at(member).bits; });
  const Best worst = best_of(report, true, [&](const auto& member) { return at(member).bits; });
  return text("Beyond the trained length: at ", count_text(static_cast<double>(length)), ", ",
              number_text(static_cast<double>(length) / static_cast<double>(report.trained_length), 1),
              " times the trained ", count_text(static_cast<double>(report.trained_length)), ", ", best.member->name,
              " reads best (", bits_text(best.value), ") and ", worst.member->name, " worst (", bits_text(worst.value),
              ").");
}

std::optional<std::string> cost_note(const Report& report) {
  const auto longest = [](const Report::Member& member, auto field) {
    double value = kNothing;
    int64_t length = -1;
    for (const auto& point : member.speed)
      if (point.length > length) length = point.length, value = point.*field;
    return value;
  };
  const auto speed = [&](const auto& member) { return longest(member, &Report::SpeedPoint::train_tokens_per_second); };
  const auto memory = [&](const auto& member) { return longest(member, &Report::SpeedPoint::peak_bytes); };
  const Best fast = best_of(report, true, speed), slow = best_of(report, false, speed);
  const Best small = best_of(report, false, memory), large = best_of(report, true, memory);
  std::string out;
  if (fast.member && slow.member != fast.member)
    out += text("At its greatest length ", fast.member->name, " trains fastest (", count_text(fast.value),
                " tokens/s) and ", slow.member->name, " slowest (", count_text(slow.value), ").");
  if (small.member && large.member != small.member)
    out += text(out.empty() ? "" : " ", small.member->name, " needs the least memory (", bytes_text(small.value), "), ",
                large.member->name, " the most (", bytes_text(large.value), ").");
  return out.empty() ? std::nullopt : std::optional(out);
}

std::optional<std::string> baseline_note(const Report& report, double best) {
  const Report::Baseline* strongest = nullptr;
  for (const auto& baseline : report.baselines)
    if (std::isfinite(baseline.bits) && (!strongest || baseline.bits < strongest->bits)) strongest = &baseline;
  if (!strongest || !std::isfinite(best)) return std::nullopt;
  if (best < strongest->bits)
    return text("The strongest simple baseline, ", strongest->name, ", has ", bits_text(strongest->bits),
                "; the best member is ", by_how_much(best, strongest->bits), " below it.");
  return text("No member beats the simple baseline ", strongest->name, " (", bits_text(strongest->bits),
              "): at this budget the comparison says little about long context. Train longer.");
}

}  // namespace

Estimate estimate(const std::vector<double>& values) {
  Estimate out;
  double sum = 0;
  for (double value : values) {
    if (std::isfinite(value))
      sum += value, ++out.seeds;
    else
      ++out.diverged;
  }
  if (out.seeds == 0) return out;
  out.mean = sum / static_cast<double>(out.seeds);
  if (out.seeds < 2) return out;
  double squares = 0;
  for (double value : values)
    if (std::isfinite(value)) squares += square(value - out.mean);
  out.spread = std::sqrt(squares / static_cast<double>(out.seeds - 1));
  return out;
}

Difference compare(const Estimate& lower, double lower_error, const Estimate& higher, double higher_error) {
  const double difference = higher.mean - lower.mean;
  if (lower.seeds >= 2 && higher.seeds >= 2) {
    const double error = std::sqrt(square(lower.spread) / static_cast<double>(lower.seeds) +
                                   square(higher.spread) / static_cast<double>(higher.seeds));
    return difference > student(lower.seeds + higher.seeds - 2) * error ? Difference::clear : Difference::within;
  }
  const double error = std::sqrt((std::isfinite(lower_error) ? square(lower_error) : 0) +
                                 (std::isfinite(higher_error) ? square(higher_error) : 0));
  return difference > 2 * error ? Difference::one_run : Difference::too_close;
}

Verdict verdict(const Report& report) {
  Verdict out;
  std::vector<Estimate> estimates;
  for (const auto& member : report.members) estimates.push_back(estimate(member.final_bits));
  for (size_t i = 0; i < report.members.size(); ++i)  // who reads another's weights was not trained at equal budget
    if (report.members[i].applied.empty()) out.order.push_back(static_cast<int64_t>(i));
  const auto mean = [&](int64_t i) {
    const double value = estimates[static_cast<size_t>(i)].mean;
    return std::isfinite(value) ? value : HUGE_VAL;
  };
  std::stable_sort(out.order.begin(), out.order.end(), [&](int64_t a, int64_t b) { return mean(a) < mean(b); });
  const auto member = [&](int64_t i) -> const Report::Member& { return report.members[static_cast<size_t>(i)]; };

  double best_mean = kNothing;
  if (out.order.empty() || !std::isfinite(mean(out.order[0]))) {
    out.sentence = "No member has a result.";
  } else {
    const int64_t best = out.order[0];
    best_mean = mean(best);
    const Estimate& leader = estimates[static_cast<size_t>(best)];
    std::vector<std::string> tied;
    int64_t next = -1;  // the best one that can be told apart
    bool one_run = leader.seeds < 2;
    for (size_t k = 1; k < out.order.size(); ++k) {
      const int64_t other = out.order[k];
      if (!std::isfinite(mean(other))) break;
      const Estimate& rival = estimates[static_cast<size_t>(other)];
      one_run = one_run || rival.seeds < 2;
      const Difference kind = compare(leader, member(best).final_error, rival, member(other).final_error);
      if (kind == Difference::within || kind == Difference::too_close) {
        out.tied.push_back(other);
        tied.push_back(member(other).name);
      } else if (next < 0) {
        next = other;
      }
    }
    const std::string& name = member(best).name;
    if (next < 0 && tied.empty()) {
      out.sentence =
          text(name, " reaches ", bits_text(best_mean), " bits per byte. It is the only member with a result.");
    } else if (tied.empty()) {
      out.sentence = text(name, " is best with ", bits_text(best_mean), " bits per byte, ",
                          by_how_much(best_mean, mean(next)), " below the next, ", member(next).name, ".");
    } else {
      out.sentence = text(name, " has the lowest figure, ", bits_text(best_mean), " bits per byte, but ",
                          one_run ? "within the error of the evaluation " : "within the spread over seeds ",
                          joined(tied), tied.size() == 1 ? " is" : " are", " as good: call it a tie.");
      if (next >= 0)
        out.sentence +=
            text(one_run ? " The next, " : " Clearly behind is the next, ", member(next).name,
                 one_run ? ", is " : ", by ", by_how_much(best_mean, mean(next)), one_run ? " behind." : ".");
    }
    if (one_run && out.order.size() > 1)
      out.sentence += " This rests on one run each: another seed may rank them otherwise (try --seeds 3).";
    else if (tied.empty() && next >= 0)
      out.sentence += text(" The difference is beyond the spread over ", leader.seeds, " seeds.");
  }
  for (auto& note : {length_note(report), cost_note(report), baseline_note(report, best_mean)})
    if (note) out.notes.push_back(*note);
  for (size_t i = 0; i < estimates.size(); ++i)
    if (estimates[i].diverged > 0)
      out.notes.push_back(text(report.members[i].name, ": ", estimates[i].diverged, " of ",
                               estimates[i].diverged + estimates[i].seeds,
                               " runs diverged; its figure is of the others alone."));
  return out;
}

}  // namespace kinfolk
