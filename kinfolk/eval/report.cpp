#include "kinfolk/eval/report.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <set>

#include "kinfolk/core/errors.h"
#include "kinfolk/eval/markup.h"
#include "kinfolk/eval/report_page.h"
#include "kinfolk/eval/report_study.h"
#include "kinfolk/eval/verdict.h"

namespace kinfolk {
namespace {

using Member = Report::Member;
constexpr int64_t kCurvePoints = 120;

std::string card(const std::string& inside) { return text("<div class=\"card\">", inside, "</div>\n"); }
std::string figure(const std::string& picture, const std::string& caption) {
  return card(text("<figure>", picture, "<figcaption>", escape(caption), "</figcaption></figure>"));
}
std::string heading(const char* words, const std::string& below) {
  return text("<h2>", words, "</h2>\n", below.empty() ? "" : text("<p class=\"soft\">", escape(below), "</p>\n"));
}

/// Each seed's curve smoothed, then the mean over seeds with a band from the lowest to the highest. Seeds log at the
/// same steps; the shortest run ends it.
ChartSeries curve_of(const Member& member, double Report::CurvePoint::*axis) {
  ChartSeries out{member.name, {}};
  if (member.curves.empty()) return out;
  size_t length = member.curves[0].size();
  for (const auto& curve : member.curves) length = std::min(length, curve.size());
  std::vector<std::vector<ChartPoint>> runs;
  for (const auto& curve : member.curves) {
    std::vector<ChartPoint> points;
    for (size_t i = 0; i < length; ++i) points.push_back({curve[i].*axis, curve[i].bits});
    runs.push_back(thinned(points, kCurvePoints));
  }
  out.band = runs.size() > 1;
  for (size_t i = 0; i < runs[0].size(); ++i) {
    ChartPoint mean{0, 0};
    double count = 0;
    for (const auto& run : runs) {
      if (!std::isfinite(run[i].x) || !std::isfinite(run[i].y)) continue;
      mean.x += run[i].x;
      mean.y += run[i].y;
      mean.low = std::fmin(mean.low, run[i].y);
      mean.high = std::fmax(mean.high, run[i].y);
      ++count;
    }
    if (count > 0) out.points.push_back({mean.x / count, mean.y / count, out.band ? mean.low : kNothing, mean.high});
  }
  return out;
}

/// Where to cut the axis so that the close ones can be told apart: at the first baseline well above three quarters of
/// the points. Nothing when no point lies beyond it.
std::optional<Report::Baseline> ceiling(const Report& report, const std::vector<ChartSeries>& series) {
  std::vector<double> values;
  for (const auto& one : series)  // the first positions of a text are hard for everybody: they do not count
    for (size_t i = one.points.size() / 3; i < one.points.size(); ++i) values.push_back(one.points[i].y);
  if (values.empty()) return std::nullopt;
  std::sort(values.begin(), values.end());
  const double quarter = values[values.size() * 3 / 4];
  std::optional<Report::Baseline> found;
  for (const auto& baseline : report.baselines)
    if (baseline.bits >= quarter + 0.3 && (!found || baseline.bits < found->bits)) found = baseline;
  return found && values.back() > found->bits ? found : std::nullopt;
}

std::string curves(const Report& report, double Report::CurvePoint::*axis, const char* title, const char* label,
                   const std::string& caption, double unit = 1) {
  LineChart chart;
  chart.title = title, chart.x_label = label, chart.y_label = "bits per byte";
  double highest = -HUGE_VAL, lowest = HUGE_VAL;
  for (const Member& member : report.members) {
    chart.series.push_back(curve_of(member, axis));
    auto& points = chart.series.back().points;
    for (size_t i = 0; i < points.size(); ++i) {
      points[i].x /= unit;
      lowest = std::min(lowest, points[i].y);
      if (i >= points.size() / 7) highest = std::max(highest, points[i].y);
    }
  }
  for (const auto& baseline : report.baselines) chart.levels.push_back({baseline.name, baseline.bits});
  // The first steps fall from 8 bits: without them the rest can be told apart.
  if (highest > lowest) chart.y_high = highest + 0.1 * (highest - lowest);
  return figure(svg(chart), caption);
}

/// By length: lines, or bars where there is only one length.
template <class Points, class Get>
std::string by_length(const Report& report, Points Member::*points, Get&& get, LineChart chart,
                      const std::string& caption, bool quality) {
  std::set<int64_t> lengths;
  bool any = false;
  for (const Member& member : report.members) {
    ChartSeries series{member.name, {}};
    for (const auto& point : member.*points) {
      const ChartPoint drawn = get(point);
      if (!std::isfinite(drawn.y)) continue;
      series.points.push_back(drawn);
      lengths.insert(static_cast<int64_t>(drawn.x));
      any = true;
    }
    chart.series.push_back(series);
  }
  if (!any) return "";
  std::string words = caption;
  if (const auto top = quality ? ceiling(report, chart.series) : std::nullopt) {
    chart.y_high = top->bits;
    words += text(" A line above the frame is worse than ", top->name, " (", fixed_text(top->bits, 2), ").");
  }
  if (report.trained_length > 0 && lengths.size() > 1)
    chart.uprights.push_back({"trained", static_cast<double>(report.trained_length)});
  chart.log_x = true;
  if (lengths.size() > 1) return figure(svg(chart), words);
  BarChart bars;
  bars.title = chart.title;
  bars.label = text(chart.y_label, " at ", chart.x_label, " ", count_text(static_cast<double>(*lengths.begin())));
  for (size_t i = 0; i < chart.series.size(); ++i) {
    if (chart.series[i].points.empty()) continue;
    const ChartPoint& point = chart.series[i].points[0];
    bars.bars.push_back({chart.series[i].name, point.y, point.low, point.high, static_cast<int64_t>(i)});
  }
  return figure(svg(bars), caption);
}

ChartPoint with_error(int64_t x, double bits, double error) {
  return {static_cast<double>(x), bits, bits - error, bits + error};
}

std::string quality_charts(const Report& report) {
  std::string out = heading("Quality", "Bits per byte, lower is better. Hover over a point for its figure.");
  out += "<div class=\"grid\">\n";
  const bool several = std::any_of(report.members.begin(), report.members.end(),
                                   [](const Member& member) { return member.curves.size() > 1; });
  const std::string band = several ? " The band spans the seeds." : "";
  out += curves(report, &Report::CurvePoint::tokens, "Learning by tokens", "tokens trained on",
                "Training text, smoothed: who learns most from the same bytes." + band);
  double longest = 0;
  for (const Member& member : report.members)
    for (const auto& curve : member.curves)
      if (!curve.empty() && std::isfinite(curve.back().seconds)) longest = std::max(longest, curve.back().seconds);
  out += curves(report, &Report::CurvePoint::seconds, "Learning by time", longest > 300 ? "minutes" : "seconds",
                "The same curves by the clock of this machine." + band, longest > 300 ? 60 : 1);
  if (report.last_bytes > 0) return out + "</div>\n" + study_section(report);
  LineChart chart;
  chart.y_label = "bits per byte";
  chart.title = "By evaluation length", chart.x_label = "length";
  out += by_length(
      report, &Member::by_length, [](const auto& point) { return with_error(point.length, point.bits, point.error); },
      chart, "The same held-out text read in pieces of this length. Bars: one standard error.", true);
  chart.title = "By position", chart.x_label = "position in the sequence";
  out += by_length(
      report, &Member::by_position,
      [](const auto& point) { return with_error(point.position, point.bits, point.error); }, chart,
      "Falling: far context is used. Rising: lost beyond the trained length.", true);
  return out + "</div>\n";
}

std::string cost_charts(const Report& report) {
  std::string costs;
  const auto cost = [&](const char* title, const char* label, double Report::SpeedPoint::*field, bool log, double unit,
                        const char* caption) {
    LineChart costs_chart;
    costs_chart.title = title, costs_chart.x_label = "length", costs_chart.y_label = label;
    costs_chart.log_y = log, costs_chart.from_zero = !log;
    costs += by_length(
        report, &Member::speed,
        [&](const auto& point) {
          return ChartPoint{static_cast<double>(point.length), point.*field / unit};
        },
        costs_chart, caption, false);
  };
  cost("Training speed", "tokens per second", &Report::SpeedPoint::train_tokens_per_second, true, 1,
       "Higher is better. A falling line: the cost of a token grows with the length.");
  cost("Evaluation speed", "tokens per second", &Report::SpeedPoint::eval_tokens_per_second, true, 1,
       "Higher is better.");
  cost("Peak memory", "MiB resident", &Report::SpeedPoint::peak_bytes, false, 1024 * 1024,
       "Of the whole process, lower is better.");
  if (costs.empty()) return "";
  return heading("Cost", "Measured on the machine named below.") + "<div class=\"grid\">\n" + costs + "</div>\n";
}

std::string cell(double value, const std::string& shown, const std::string& below = "") {
  return text("<td data-value=\"", std::isfinite(value) ? text(value) : "", "\">", escape(shown),
              below.empty() ? "" : "<small>" + escape(below) + "</small>", "</td>");
}

std::string table(const Report& report, const Verdict& found) {
  std::string out = heading("Table", "Best first; click a column's head to sort by it.");
  std::string rows;
  const double best =
      found.order.empty() ? kNothing : estimate(report.members[static_cast<size_t>(found.order[0])].final_bits).mean;
  for (size_t rank = 0; rank < found.order.size(); ++rank) {
    const int64_t index = found.order[rank];
    const Member& member = report.members[static_cast<size_t>(index)];
    const Estimate bits = estimate(member.final_bits);
    const bool tied = std::count(found.tied.begin(), found.tied.end(), index) > 0;
    const bool leads = rank == 0 && std::isfinite(best);
    rows += leads || tied ? "<tr class=\"best\">" : "<tr>";
    rows += text("<td data-value=\"", escape(member.name),
                 "\"><span class=\"dot\" style=\"background:", palette_colour(index), "\"></span><b>",
                 escape(member.name), "</b><small>", escape(member.about), "</small></td>");
    std::string error;
    if (bits.seeds > 1)
      error = text("\u00b1 ", fixed_text(bits.spread, 3), " over ", bits.seeds, " seeds");
    else if (std::isfinite(member.final_error))
      error = text("\u00b1 ", fixed_text(member.final_error, 3), " (text), one seed");
    rows += cell(bits.mean,
                 std::isfinite(bits.mean) ? fixed_text(bits.mean, 3)
                 : bits.diverged > 0      ? "diverged"
                                          : "\u2013",
                 error);
    const double behind = bits.mean - best;
    rows += cell(behind,
                 leads                   ? "lowest"
                 : std::isfinite(behind) ? "+" + fixed_text(behind, 3)
                                         : "\u2013",
                 tied                              ? "a tie"
                 : leads || !std::isfinite(behind) ? ""
                                                   : fixed_text(100 * behind / best, 1) + " %");
    rows += cell(static_cast<double>(member.parameters), count_text(static_cast<double>(member.parameters)));
    rows += cell(static_cast<double>(member.tokens), count_text(static_cast<double>(member.tokens)));
    rows +=
        cell(member.seconds, duration_text(member.seconds),
             member.seconds > 0 ? count_text(static_cast<double>(member.tokens) / member.seconds) + " tokens/s" : "");
    rows += cell(member.flops, count_text(member.flops));
    rows += cell(member.state_bytes, bytes_text(member.state_bytes), member.state_note);
    double peak = kNothing;
    for (const auto& point : member.speed) peak = std::fmax(peak, point.peak_bytes);
    rows += cell(peak, bytes_text(peak)) + "</tr>\n";
  }
  out += card(
      "<div class=\"scroll\"><table class=\"sort\"><thead><tr><th>member</th><th>bits per byte</th><th>behind</th>"
      "<th>parameters</th><th>tokens</th><th>training time</th><th>work (FLOP)</th><th>state</th><th>peak memory</th>"
      "</tr></thead><tbody>\n" +
      rows + "</tbody></table></div>");
  if (!report.baselines.empty()) {
    std::string line = "For scale: ";
    for (const auto& baseline : report.baselines) line += text(baseline.name, " ", fixed_text(baseline.bits, 3), ", ");
    out += text("<p class=\"soft\">", escape(line), "guessing blindly 8 bits per byte.</p>\n");
  }
  return out;
}

/// The figures behind the chart by length, and how each member reads.
std::string length_table(const Report& report) {
  std::set<int64_t> lengths;
  for (const Member& member : report.members)
    for (const auto& point : member.by_length) lengths.insert(point.length);
  if (lengths.empty() || report.last_bytes > 0) return "";  // a study has tables of its own
  std::string head, rows;
  for (int64_t length : lengths) head += text("<th>", count_text(static_cast<double>(length)), "</th>");
  for (const Member& member : report.members) {
    std::map<int64_t, Report::LengthPoint> points;
    for (const auto& point : member.by_length) points[point.length] = point;
    if (points.empty()) continue;
    rows += text("<tr><td><b>", escape(member.name), "</b><small>", escape(member.policy), "</small></td>");
    for (int64_t length : lengths) {
      const auto point = points.count(length) ? points[length] : Report::LengthPoint{};
      rows += cell(point.bits, fixed_text(point.bits, 3), point.mode);
    }
    rows += "</tr>\n";
  }
  return card(text("<h3>Bits per byte by evaluation length</h3><div class=\"scroll\"><table><thead><tr><th>member</th>",
                   head, "</tr></thead><tbody>", rows, "</tbody></table></div>"));
}

std::string pictures(const Report& report) {
  if (report.patterns.empty()) return "";
  std::string out = heading(
      "Who sees whom",
      "A row is a position that reads, a column a position that is read; filled = seen. The first is top left.");
  out += "<div class=\"pictures\">\n";
  for (const auto& pattern : report.patterns)
    out += figure(svg(MatrixPicture{pattern.name, pattern.rows, pattern.columns, pattern.weights}), pattern.about);
  return out + "</div>\n";
}

std::string samples(const Report& report) {
  std::string inside;
  for (const Member& member : report.members)
    if (!member.sample.empty() || !member.prompt.empty())
      inside += card(text("<h3>", escape(member.name), "</h3><pre class=\"sample\"><b>", escape(member.prompt), "</b>",
                          escape(member.sample), "</pre>"));
  if (inside.empty()) return "";
  return heading("Samples",
                 "Each member continues the same prompt (in colour). Bytes that are no text show as \uFFFD.") +
         "<div class=\"grid\">\n" + inside + "</div>\n";
}

std::string warnings(const Report& report) {
  std::string items;
  for (const auto& warning : report.warnings) items += text("<li>", escape(warning), "</li>");
  for (const Member& member : report.members)
    for (const auto& warning : member.warnings)
      items += text("<li><b>", escape(member.name), "</b>: ", escape(warning), "</li>");
  if (items.empty()) return "";
  return text("<div class=\"card warn\"><h3>To know before you trust it</h3><ul>", items, "</ul></div>\n");
}

std::string method(const Report& report) {
  std::string facts;
  const auto fact = [&](const char* name, const std::string& value) {
    if (!value.empty()) facts += text("<dt>", name, "</dt><dd>", escape(value), "</dd>");
  };
  fact("data", report.data);
  fact("equal budget", report.budget);
  fact("trained length", report.trained_length > 0 ? text(report.trained_length) : "");
  fact("machine", report.machine);
  fact("made", report.created);
  fact("version", report.version);
  std::string out = heading("How it was made", "") + card("<dl>" + facts + "</dl>");
  if (!report.command.empty()) out += card("<h3>The command</h3><pre>" + escape(report.command) + "</pre>");
  return out;
}

}  // namespace

std::string html(const Report& report) {
  const Verdict found = verdict(report);
  std::string notes;
  for (const auto& note : found.notes) notes += text("<li>", escape(note), "</li>");
  std::string subtitle;
  for (const auto& part : {report.data, report.budget})
    if (!part.empty()) subtitle += (subtitle.empty() ? "" : " \u00b7 ") + part;
  return text(
      "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">"
      "<meta name=\"viewport\" content=\"width=device-width,initial-scale=1\"><title>",
      escape(report.title), "</title><style>", kReportStyle, "</style></head><body><main>\n<h1>", escape(report.title),
      "</h1>\n<p class=\"soft\">", escape(subtitle), "</p>\n<div class=\"card verdict\"><p>", escape(found.sentence),
      "</p>", notes.empty() ? "" : "<ul>" + notes + "</ul>", "</div>\n", warnings(report), table(report, found),
      quality_charts(report), length_table(report), cost_charts(report), pictures(report), samples(report),
      method(report), heading("How to read it", ""), card(kReportGlossary), "</main><script>", kReportScript,
      "</script></body></html>\n");
}

}  // namespace kinfolk
