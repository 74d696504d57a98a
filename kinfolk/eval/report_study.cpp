#include "kinfolk/eval/report_study.h"

#include <algorithm>
#include <cmath>
#include <set>

#include "kinfolk/core/errors.h"
#include "kinfolk/eval/markup.h"

namespace kinfolk {
namespace {

using Member = Report::Member;
using LengthPoint = Report::LengthPoint;
constexpr double kTolerance = 0.05;  // bits per byte that a member may rise and still hold
constexpr double kRoom = 1.5;        // bits per byte above the best at the trained length that a chart shows

std::vector<const Member*> members_of(const Report& report, const std::string& group) {
  std::vector<const Member*> out;
  for (const auto& member : report.members)
    if (member.group == group) out.push_back(&member);
  return out;
}

/// Members of other groups that those of this one are applied to, first, then the group itself.
std::vector<const Member*> drawn(const Report& report, const std::string& group) {
  const auto own = members_of(report, group);
  std::vector<const Member*> out;
  for (const auto& member : report.members)
    if (member.group != group &&
        std::any_of(own.begin(), own.end(), [&](const Member* other) { return other->applied == member.name; })) {
      out.push_back(&member);
    }
  out.insert(out.end(), own.begin(), own.end());
  return out;
}

std::vector<int64_t> lengths_of(const Report& report) {
  std::set<int64_t> found;
  for (const auto& member : report.members)
    for (const auto& point : member.by_length) found.insert(point.length);
  return {found.begin(), found.end()};
}

const LengthPoint* at(const Member& member, int64_t length) {
  for (const auto& point : member.by_length)
    if (point.length == length) return &point;
  return nullptr;
}

double value_of(const LengthPoint& point, bool last) { return last ? point.last : point.bits; }

/// The greatest length up to which the last bytes are read no worse than at the trained length; 0 = it holds nowhere
/// beyond it.
int64_t holds_to(const Report& report, const Member& member) {
  int64_t held = 0;
  for (const auto& point : member.by_length) {
    if (point.length <= report.trained_length) continue;
    if (!(point.change <= kTolerance)) break;
    held = point.length;
  }
  return held;
}

std::string held_words(const Report& report, const Member& member) {
  const int64_t held = holds_to(report, member);
  return held == 0 ? "\u2013" : count_text(static_cast<double>(held));
}

std::string signed_text(double value, int digits) {
  return std::isfinite(value) ? (value >= 0 ? "+" : "\u2212") + fixed_text(std::abs(value), digits) : "\u2013";
}

std::string against_words(const LengthPoint& point) {
  if (!std::isfinite(point.against)) return "\u2013";
  return signed_text(point.against, 3) +
         (std::isfinite(point.against_error) ? " \u00b1 " + fixed_text(point.against_error, 3) : "");
}

std::string explained(const Report& report) {
  return text("Weights are those of ", count_text(static_cast<double>(report.trained_length)), " bytes. ",
              report.windows, " texts of each length end at the same places, so that the same ", report.last_bytes,
              " bytes are read with more and more before them; the mean is that of all bytes of a text. ",
              "A member holds to a length when, there and at all shorter ones, the last bytes cost no more than ",
              number_text(kTolerance, 2), " bits above what they cost at the trained length.");
}

std::string figure(const std::string& picture, const std::string& caption) {
  return text("<div class=\"card\"><figure>", picture, "<figcaption>", escape(caption),
              "</figcaption></figure></div>\n");
}

LineChart chart_of(const std::string& title, const std::string& x_label, bool wide) {
  LineChart chart;
  chart.title = title, chart.x_label = x_label, chart.y_label = "bits per byte";
  chart.log_x = true;
  chart.width = wide ? 1000 : 560, chart.height = wide ? 520 : 420;
  return chart;
}

/// Cuts what fails so that what holds can be told apart; returns what the caption says of it.
std::string cut(LineChart& chart, double home) {
  double highest = -HUGE_VAL;
  for (const auto& series : chart.series)
    for (const auto& point : series.points) highest = std::max(highest, point.y);
  if (!std::isfinite(home) || !(highest > home + kRoom)) return "";
  chart.y_high = home + kRoom;
  return text(" A line that leaves the frame is above ", fixed_text(home + kRoom, 2), ".");
}

/// The chart and the words below it.
std::pair<LineChart, std::string> by_length(const Report& report, const std::string& group, bool last) {
  const std::string what =
      last ? text("the last ", report.last_bytes, " bytes of each text") : "all bytes of each text";
  LineChart chart = chart_of(text(group, ": ", what), "length of the text, bytes", last);
  double home = kNothing;
  for (const Member* member : drawn(report, group)) {
    ChartSeries series{member->name, {}};
    for (const auto& point : member->by_length) {
      const double bits = value_of(point, last);
      if (!std::isfinite(bits)) continue;
      series.points.push_back({static_cast<double>(point.length), bits});
      if (point.length == report.trained_length) home = std::fmin(home, bits);
    }
    chart.series.push_back(std::move(series));
  }
  chart.uprights.push_back({"trained", static_cast<double>(report.trained_length)});
  const std::string words = cut(chart, home);
  return {std::move(chart), words};
}

std::string position_chart(const Report& report, const std::string& group) {
  LineChart chart = chart_of(group + ": by position", "position in the longest text", false);
  double home = kNothing;
  for (const Member* member : drawn(report, group)) {
    ChartSeries series{member->name, {}};
    for (const auto& point : member->by_position) {
      if (!std::isfinite(point.bits)) continue;
      series.points.push_back({static_cast<double>(point.position), point.bits});
      if (point.position > report.trained_length / 4 && point.position <= report.trained_length) {
        home = std::fmin(home, point.bits);
      }
    }
    chart.series.push_back(std::move(series));
  }
  chart.uprights.push_back({"trained", static_cast<double>(report.trained_length)});
  const std::string words = cut(chart, home);
  return figure(svg(chart), "Falling: far context is used. Rising: lost." + words);
}

std::string html_table(const Report& report, const std::string& group) {
  const auto lengths = lengths_of(report);
  std::string head = "<th>member</th>", rows;
  for (const int64_t length : lengths) head += text("<th>", count_text(static_cast<double>(length)), "</th>");
  head += "<th>holds to</th>";
  if (!report.reference.empty()) {
    head += text("<th>mean against<br>", escape(report.reference), "</th>");
  }
  for (const Member* member : members_of(report, group)) {
    rows += text("<tr><td><b>", escape(member->name), "</b><small>",
                 escape(member->setting.empty() ? member->about : member->setting), "</small></td>");
    for (const int64_t length : lengths) {
      const LengthPoint* point = at(*member, length);
      if (!point) {
        rows += "<td data-value=\"\">\u2013</td>";
        continue;
      }
      rows += text("<td data-value=\"", std::isfinite(point->last) ? text(point->last) : "", "\">",
                   fixed_text(point->last, 3), "<small>mean ", fixed_text(point->bits, 3), "</small></td>");
    }
    rows += text("<td data-value=\"", holds_to(report, *member), "\">", held_words(report, *member), "</td>");
    if (!report.reference.empty() && !lengths.empty()) {
      const LengthPoint* point = at(*member, lengths.back());
      const double against = point ? point->against : kNothing;
      rows += text("<td data-value=\"", std::isfinite(against) ? text(against) : "", "\">",
                   point ? against_words(*point) : "\u2013", "</td>");
    }
    rows += "</tr>\n";
  }
  return text("<div class=\"card\"><h3>", escape(group), ": bits per byte of the last ", report.last_bytes,
              " bytes, by length of the text</h3><div class=\"scroll\"><table class=\"sort\"><thead><tr>", head,
              "</tr></thead><tbody>\n", rows, "</tbody></table></div></div>\n");
}

std::string markdown_table(const Report& report, const std::string& group, bool last) {
  const auto lengths = lengths_of(report);
  const bool against = !last && !report.reference.empty() && !lengths.empty();
  std::string out = "| member |", rule = "| --- |";
  for (const int64_t length : lengths) out += text(" ", length, " |"), rule += " ---: |";
  if (last) out += " holds to |", rule += " ---: |";
  if (against) out += text(" against `", report.reference, "` |"), rule += " ---: |";
  out += "\n" + rule + "\n";
  for (const Member* member : members_of(report, group)) {
    out += text("| `", member->name, "` |");
    for (const int64_t length : lengths) {
      const LengthPoint* point = at(*member, length);
      out += text(" ", point ? fixed_text(value_of(*point, last), 3) : "\u2013", " |");
    }
    if (last) out += text(" ", held_words(report, *member), " |");
    if (against) {
      const LengthPoint* point = at(*member, lengths.back());
      out += text(" ", point ? against_words(*point) : "\u2013", " |");
    }
    out += "\n";
  }
  return out;
}

}  // namespace

std::vector<std::string> groups_of(const Report& report) {
  std::vector<std::string> out;
  for (const auto& member : report.members)
    if (std::find(out.begin(), out.end(), member.group) == out.end()) out.push_back(member.group);
  return out;
}

std::string group_chart(const Report& report, const std::string& group, bool last) {
  return svg(by_length(report, group, last).first);
}

std::string study_section(const Report& report) {
  std::string out = text("<h2>By evaluation length</h2>\n<p class=\"soft\">", escape(explained(report)), "</p>\n");
  for (const auto& group : groups_of(report)) {
    const auto [last, last_words] = by_length(report, group, true);
    out += figure(svg(last), text("The last ", report.last_bytes,
                                  " bytes, the same ones at every length: falling, more context helps; level, it is "
                                  "not missed; rising, the member is lost.",
                                  last_words));
    out += html_table(report, group);
    const auto [all, all_words] = by_length(report, group, false);
    out += text("<div class=\"grid\">\n", figure(svg(all), "The mean of all bytes." + all_words),
                position_chart(report, group), "</div>\n");
  }
  return out;
}

std::string markdown(const Report& report) {
  std::string out = text("# ", report.title, "\n\n", explained(report), "\n\n");
  for (const auto& group : groups_of(report)) {
    out += text("## ", group, "\n\nBits per byte of the last ", report.last_bytes, " bytes:\n\n",
                markdown_table(report, group, true), "\nOf all bytes of each text");
    if (!report.reference.empty()) {
      out += text("; the last column: at the greatest length against `", report.reference,
                  "` on the same texts, with the standard error of the paired difference");
    }
    out += ":\n\n" + markdown_table(report, group, false) + "\n";
    std::string applied;
    for (const Member* member : members_of(report, group)) {
      if (member->applied.empty()) continue;
      applied += text("- `", member->name, "`: the weights of `", member->applied, "`",
                      member->setting.empty() ? "" : text(" with `--set '", member->setting, "'`"),
                      member->by_length.empty() || member->by_length[0].mode == "stream"
                          ? ""
                          : ", read in " + member->by_length[0].mode,
                      "\n");
    }
    if (!applied.empty()) out += applied + "\n";
  }
  return text(out, "Data: ", report.data, ". Budget: ", report.budget, ". Made ", report.created, " on ",
              report.machine, ".\n\n```\n", report.command, "\n```\n");
}

}  // namespace kinfolk
