#include "kinfolk/eval/report_scaling.h"

#include <cmath>
#include <set>

#include <nlohmann/json.hpp>

#include "kinfolk/core/errors.h"
#include "kinfolk/eval/markup.h"
#include "kinfolk/eval/plot.h"
#include "kinfolk/eval/report_page.h"

namespace kinfolk {
namespace {

struct Table {
  std::string title, note;
  std::vector<std::vector<std::string>> rows = {};  // the first is the heading
};

std::string exponent_text(const PowerLaw& law) {
  if (!std::isfinite(law.exponent)) return "–";
  return fixed_text(law.exponent, 2) + (std::isfinite(law.error) ? " ± " + fixed_text(law.error, 2) : "");
}

/// Three digits at most, and no more than they are worth: 0.62, 4.3, 58, 1240.
std::string figure(double value) { return number_text(value, value < 1 ? 2 : value < 20 ? 1 : 0); }

Table exponents(const ScalingReport& report) {
  const CostCurve *reference = report.find(report.reference), *without = report.find(report.without);
  Table out{"Exponents", text("Least squares of the logarithms over the lengths from ", report.fit_from,
                              " on, with the standard error of the exponent.")};
  out.rows = {{"member", "time", "of the last two lengths"}};
  if (without) out.rows[0].push_back(text("time beyond ", without->name));
  out.rows[0].push_back("memory");
  if (reference) out.rows[0].push_back(text("cheaper than ", reference->name, " from"));
  for (const auto& curve : report.curves) {
    std::vector<std::string> row{curve.name, exponent_text(time_law(curve, report.fit_from)),
                                 fixed_text(last_exponent(curve), 2)};
    if (without) row.push_back(exponent_text(time_law_beyond(curve, *without, report.fit_from)));
    row.push_back(exponent_text(memory_law(curve, report.fit_from)));
    if (reference) row.push_back(&curve == reference ? "–" : words(cheaper_from(curve, *reference, report.fit_from)));
    out.rows.push_back(std::move(row));
  }
  return out;
}

double bytes_at(const CostCurve& curve, int64_t length, int64_t fit_from) {
  for (const auto& point : curve.points)
    if (point.length == length) return point.bytes;
  const auto& last = curve.points.back();
  return last.bytes *
         std::pow(static_cast<double>(length) / static_cast<double>(last.length), memory_law(curve, fit_from).exponent);
}

/// `cost(curve, length)` of all members at all lengths, for each token; what was not measured has a sign before it.
template <class Cost>
Table by_length(const ScalingReport& report, const std::string& title, double unit, Cost&& cost) {
  Table out{title, "≈: extrapolated with the exponent of the fit."};
  out.rows = {{"member"}};
  const auto lengths = report.lengths();
  for (const int64_t length : lengths) out.rows[0].push_back(std::to_string(length));
  for (const auto& curve : report.curves) {
    std::vector<std::string> row{curve.name};
    for (const int64_t length : lengths) {
      const double each = cost(curve, length) / static_cast<double>(length) / unit;
      row.push_back((!curve.points.empty() && length > curve.points.back().length ? "≈ " : "") + figure(each));
    }
    out.rows.push_back(std::move(row));
  }
  return out;
}

std::vector<Table> tables(const ScalingReport& report) {
  return {exponents(report),
          by_length(report, "Time, µs a token", 1e-6,
                    [&](const CostCurve& curve, int64_t length) {
                      return seconds_at(curve, static_cast<double>(length), report.fit_from);
                    }),
          by_length(report, "Memory, KiB a token", 1024, [&](const CostCurve& curve, int64_t length) {
            return curve.points.empty() ? kNothing : bytes_at(curve, length, report.fit_from);
          })};
}

template <class Law, class Cost>
std::string chart(const ScalingReport& report, const std::string& title, const std::string& unit_name, double unit,
                  Law&& law_of, Cost&& cost) {
  LineChart out;
  out.title = title, out.x_label = "tokens", out.y_label = unit_name;
  out.log_x = out.log_y = true;
  out.width = 860, out.height = 600;
  const auto lengths = report.lengths();
  for (size_t i = 0; i < report.curves.size(); ++i) {
    const auto& curve = report.curves[i];
    if (curve.points.empty()) continue;
    ChartSeries measured, beyond;
    measured.name = text(curve.name, "  ", exponent_text(law_of(curve, report.fit_from)));
    beyond.name = curve.name + ", extrapolated", beyond.aside = true;
    measured.colour = beyond.colour = static_cast<int64_t>(i);
    for (const int64_t length : lengths) {
      const ChartPoint point{static_cast<double>(length), cost(curve, length) / static_cast<double>(length) / unit};
      if (length <= curve.points.back().length) measured.points.push_back(point);
      if (length >= curve.points.back().length) beyond.points.push_back(point);
    }
    out.series.push_back(std::move(measured));
    if (beyond.points.size() > 1) out.series.push_back(std::move(beyond));
  }
  return svg(out);
}

std::string about(const ScalingReport& report) {
  return text(
      "One layer's mixer with its projections, ", report.layer,
      ", forward and backward of one lane of random inputs in float32, CPU time, the median of members in turns");
}

}  // namespace

std::vector<int64_t> ScalingReport::lengths() const {
  std::set<int64_t> out;
  for (const auto& curve : curves)
    for (const auto& point : curve.points) out.insert(point.length);
  return {out.begin(), out.end()};
}

const CostCurve* ScalingReport::find(const std::string& name) const {
  for (const auto& curve : curves)
    if (curve.name == name && !curve.points.empty()) return &curve;
  return nullptr;
}

std::string time_chart(const ScalingReport& report) {
  return chart(report, "Time of a layer by length, and its exponent", "µs a token, forward and backward", 1e-6,
               time_law, [&](const CostCurve& curve, int64_t length) {
                 return seconds_at(curve, static_cast<double>(length), report.fit_from);
               });
}

std::string memory_chart(const ScalingReport& report) {
  return chart(report, "Memory of a layer by length, and its exponent", "KiB a token, at most while it runs", 1024,
               memory_law,
               [&](const CostCurve& curve, int64_t length) { return bytes_at(curve, length, report.fit_from); });
}

std::string html(const ScalingReport& report) {
  std::string out = text(
      "<!doctype html><html lang=\"en\"><head><meta charset=\"utf-8\"><meta name=\"viewport\" "
      "content=\"width=device-width,initial-scale=1\"><title>",
      escape(report.title), "</title><style>", kReportStyle, "</style></head><body><main><h1>", escape(report.title),
      "</h1><p class=\"soft\">", escape(about(report)), "; ", escape(report.machine), "; ", escape(report.date),
      "</p>");
  const auto figure_of = [&](const std::string& picture, const std::string& caption) {
    out += text("<div class=\"card\"><figure>", picture, "<figcaption>", caption, "</figcaption></figure></div>");
  };
  figure_of(time_chart(report),
            "A level line is time in proportion to the length. Behind the names: the exponent of the time of the whole "
            "layer with its standard error. Dotted: extrapolated with it.");
  figure_of(memory_chart(report),
            "How far the resident memory of the process rises while the layer runs forward and backward, beyond its "
            "weights and its input.");
  for (const auto& table : tables(report)) {
    out += text("<h2>", escape(table.title), "</h2><div class=\"card\"><p class=\"soft\">", escape(table.note),
                "</p><div class=\"scroll\"><table><thead>");
    for (size_t row = 0; row < table.rows.size(); ++row) {
      const char* cell = row == 0 ? "th" : "td";
      out += "<tr>";
      for (const auto& words : table.rows[row]) out += text("<", cell, ">", escape(words), "</", cell, ">");
      out += row == 0 ? "</tr></thead><tbody>" : "</tr>";
    }
    out += "</tbody></table></div></div>";
  }
  return out + text("<h2>How it was made</h2><div class=\"card\"><pre>", escape(report.command),
                    "</pre></div></main></body></html>\n");
}

std::string markdown(const ScalingReport& report) {
  std::string out = text("# ", report.title, "\n\n", about(report), "; ", report.machine, "; ", report.date, "\n");
  for (const auto& table : tables(report)) {
    out += text("\n## ", table.title, "\n\n", table.note, "\n\n");
    for (size_t row = 0; row < table.rows.size(); ++row) {
      for (const auto& words : table.rows[row]) out += text("| ", words, " ");
      out += "|\n";
      if (row > 0) continue;
      out += "| --- ";
      for (size_t i = 1; i < table.rows[0].size(); ++i) out += "| ---: ";
      out += "|\n";
    }
  }
  return out + text("\n```\n", report.command, "\n```\n");
}

std::string json(const ScalingReport& report) {
  using Json = nlohmann::ordered_json;  // numbers that are not finite are written as null
  const auto fitted = [](const PowerLaw& law) {
    return Json{{"exponent", law.exponent}, {"error", law.error}, {"points", law.points}};
  };
  const CostCurve *reference = report.find(report.reference), *without = report.find(report.without);
  Json members = Json::array();
  for (const auto& curve : report.curves) {
    Json one{{"name", curve.name}, {"points", Json::array()}};
    for (const auto& point : curve.points) {
      one["points"].push_back({{"length", point.length},
                               {"seconds", point.seconds},
                               {"peak_bytes", point.bytes},
                               {"rounds", point.rounds}});
    }
    one["time"] = fitted(time_law(curve, report.fit_from)), one["last"] = last_exponent(curve);
    if (without) one["time_beyond"] = fitted(time_law_beyond(curve, *without, report.fit_from));
    one["memory"] = fitted(memory_law(curve, report.fit_from));
    if (reference && &curve != reference) {
      const Crossing crossing = cheaper_from(curve, *reference, report.fit_from);
      one["cheaper_from"] = {{"words", words(crossing)}, {"length", crossing.length}};
    }
    members.push_back(std::move(one));
  }
  const Json out{{"title", report.title},     {"command", report.command},   {"machine", report.machine},
                 {"date", report.date},       {"layer", report.layer},       {"reference", report.reference},
                 {"without", report.without}, {"fit_from", report.fit_from}, {"members", members}};
  return out.dump(1) + "\n";
}

}  // namespace kinfolk
