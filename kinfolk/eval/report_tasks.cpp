#include "kinfolk/eval/report_tasks.h"

#include <algorithm>
#include <cmath>

#include "kinfolk/core/errors.h"
#include "kinfolk/eval/markup.h"
#include "kinfolk/eval/plot.h"
#include "kinfolk/eval/report_page.h"

namespace kinfolk {
namespace {

std::vector<double> places(const TaskReport::Chart& chart) {
  std::vector<double> out;
  for (const auto& point : chart.points) out.push_back(point.at);
  std::sort(out.begin(), out.end());
  out.erase(std::unique(out.begin(), out.end()), out.end());
  return out;
}

const TaskReport::Point* find(const TaskReport::Chart& chart, const std::string& member, double at) {
  for (const auto& point : chart.points)
    if (point.member == member && point.at == at) return &point;
  return nullptr;
}

/// Members of the report with a point here.
std::vector<std::string> members_of(const TaskReport& report, const TaskReport::Chart& chart) {
  std::vector<std::string> out;
  for (const auto& member : report.members)
    if (std::any_of(chart.points.begin(), chart.points.end(), [&](const auto& p) { return p.member == member; })) {
      out.push_back(member);
    }
  return out;
}

std::string cell(const TaskReport::Point* point) {
  return point ? fixed_text(100 * point->accuracy, 1) : std::string("–");
}

std::string state_of(const TaskReport::Chart& chart, const std::string& member) {
  int64_t least = 0, most = 0;
  for (const auto& point : chart.points) {
    if (point.member != member || point.state_bytes == 0) continue;
    least = least == 0 ? point.state_bytes : std::min(least, point.state_bytes);
    most = std::max(most, point.state_bytes);
  }
  if (most == 0) return "–";
  const std::string low = bytes_text(static_cast<double>(least)), high = bytes_text(static_cast<double>(most));
  return low == high ? low : low + " to " + high;
}

std::string table(const TaskReport& report, const TaskReport::Chart& chart) {
  std::string out =
      text("<div class=\"scroll\"><table><thead><tr><th>right answers, %, by ", escape(chart.axis), "</th>");
  const auto across = places(chart);
  for (const double at : across) out += text("<th>", number_text(at, 3), "</th>");
  out += "<th>state of a lane</th></tr></thead><tbody>";
  for (const auto& member : members_of(report, chart)) {
    out += text("<tr><td>", escape(member), "</td>");
    for (const double at : across) {
      const auto* point = find(chart, member, at);
      out += text("<td>", cell(point));
      if (point && std::isfinite(point->error)) out += text("<small>± ", fixed_text(100 * point->error, 1), "</small>");
      out += "</td>";
    }
    out += text("<td>", state_of(chart, member), "</td></tr>");
  }
  return out + "</tbody></table></div>";
}

}  // namespace

std::string task_chart(const TaskReport& report, const TaskReport::Chart& chart) {
  LineChart out;
  out.title = chart.name;
  out.x_label = chart.axis;
  out.y_label = "right answers, %";
  out.y_low = 0, out.y_high = 102;
  const auto across = places(chart);
  out.log_x = !across.empty() && across.front() > 0 && across.back() > 4 * across.front();
  out.height = 380;
  for (size_t i = 0; i < report.members.size(); ++i) {
    ChartSeries series;
    series.name = report.members[i];
    series.colour = static_cast<int64_t>(i);
    for (const double at : across) {
      const auto* point = find(chart, report.members[i], at);
      if (!point) continue;
      const double y = 100 * point->accuracy;
      series.points.push_back({at, y, y - 100 * point->error, std::min(100.0, y + 100 * point->error)});
    }
    if (!series.points.empty()) out.series.push_back(std::move(series));
  }
  return svg(out);
}

std::string html(const TaskReport& report) {
  std::string out = text(
      "<!doctype html><html lang=\"en\"><head><meta charset=\"utf-8\"><meta name=\"viewport\" "
      "content=\"width=device-width,initial-scale=1\"><title>",
      escape(report.title), "</title><style>", kReportStyle, "</style></head><body><main><h1>", escape(report.title),
      "</h1><p class=\"soft\">", escape(report.budget), "; ", escape(report.machine), "; ", escape(report.date),
      "</p>");
  for (const auto& chart : report.charts) {
    if (chart.points.empty()) continue;
    out += text("<h2>", escape(chart.name), "</h2><div class=\"card\"><figure>", task_chart(report, chart),
                "<figcaption>The share of questions whose answer gets the highest score, on examples that were never "
                "trained on; a bar is one standard error.</figcaption></figure></div><div class=\"card\">",
                table(report, chart), "</div>");
  }
  return out + text("<h2>How it was made</h2><div class=\"card\"><pre>", escape(report.command),
                    "</pre></div></main></body></html>\n");
}

std::string markdown(const TaskReport& report) {
  std::string out = text("# ", report.title, "\n\n", report.budget, "; ", report.machine, "; ", report.date, "\n");
  for (const auto& chart : report.charts) {
    if (chart.points.empty()) continue;
    const auto across = places(chart);
    out += text("\n## ", chart.name, "\n\n| right answers, %, by ", chart.axis, " |");
    for (const double at : across) out += text(" ", number_text(at, 3), " |");
    out += " state of a lane |\n| --- |";
    for (size_t i = 0; i <= across.size(); ++i) out += " --- |";
    out += "\n";
    for (const auto& member : members_of(report, chart)) {
      out += text("| ", member, " |");
      for (const double at : across) out += text(" ", cell(find(chart, member, at)), " |");
      out += text(" ", state_of(chart, member), " |\n");
    }
  }
  return out + text("\n```\n", report.command, "\n```\n");
}

}  // namespace kinfolk
