#include <cmath>

#include <nlohmann/json.hpp>

#include "kinfolk/eval/report.h"
#include "kinfolk/eval/verdict.h"

namespace kinfolk {
namespace {

using Json = nlohmann::ordered_json;  // the page's order; numbers that are not finite are written as null

template <class Items, class Fields>
Json listed(const Items& items, Fields&& fields) {
  Json out = Json::array();
  for (const auto& item : items) out.push_back(fields(item));
  return out;
}

Json member_json(const Report::Member& member) {
  const Estimate final_bits = estimate(member.final_bits);
  Json out;
  out["name"] = member.name;
  out["about"] = member.about;
  out["parameters"] = member.parameters;
  out["tokens"] = member.tokens;
  out["seconds"] = member.seconds;
  out["flops"] = member.flops;
  out["state_bytes"] = member.state_bytes;
  out["state_note"] = member.state_note;
  out["validation"] = {{"bits_per_byte", member.final_bits},
                       {"mean", final_bits.mean},
                       {"spread", final_bits.spread},
                       {"diverged", final_bits.diverged},
                       {"standard_error", member.final_error}};
  out["by_length"] = listed(member.by_length, [](const auto& point) {
    Json row{{"length", point.length}, {"bits_per_byte", point.bits}, {"error", point.error}, {"mode", point.mode}};
    if (std::isfinite(point.last)) {
      row["last"] = point.last;
      row["change"] = point.change, row["change_error"] = point.change_error;
      row["against"] = point.against, row["against_error"] = point.against_error;
    }
    return row;
  });
  out["by_position"] = listed(member.by_position, [](const auto& point) {
    return Json{{"position", point.position}, {"bits_per_byte", point.bits}, {"error", point.error}};
  });
  out["speed"] = listed(member.speed, [](const auto& point) {
    return Json{{"length", point.length},
                {"train_tokens_per_second", point.train_tokens_per_second},
                {"eval_tokens_per_second", point.eval_tokens_per_second},
                {"peak_bytes", point.peak_bytes}};
  });
  out["curves"] = listed(member.curves, [](const auto& curve) {
    return listed(curve, [](const auto& point) { return Json::array({point.tokens, point.seconds, point.bits}); });
  });
  out["prompt"] = member.prompt;
  out["sample"] = member.sample;
  out["policy"] = member.policy;
  out["warnings"] = member.warnings;
  if (!member.group.empty()) out["group"] = member.group, out["applied"] = member.applied, out["set"] = member.setting;
  return out;
}

/// Indented to `depth` levels, compact below: a curve is one line.
std::string laid_out(const Json& value, int64_t depth, const std::string& indent = "") {
  if (depth == 0 || !value.is_structured() || value.empty())
    return value.dump(-1, ' ', false, Json::error_handler_t::replace);
  std::string out;
  for (const auto& [key, inside] : value.items()) {
    out += (out.empty() ? "\n" : ",\n") + indent + " ";
    if (value.is_object()) out += Json(key).dump(-1, ' ', false, Json::error_handler_t::replace) + ": ";
    out += laid_out(inside, depth - 1, indent + " ");
  }
  return (value.is_object() ? "{" : "[") + out + "\n" + indent + (value.is_object() ? "}" : "]");
}

}  // namespace

std::string json(const Report& report) {
  const Verdict found = verdict(report);
  Json out;
  out["title"] = report.title;
  out["command"] = report.command;
  out["created"] = report.created;
  out["machine"] = report.machine;
  out["version"] = report.version;
  out["data"] = report.data;
  out["budget"] = report.budget;
  out["trained_length"] = report.trained_length;
  if (report.last_bytes > 0) {
    out["last_bytes"] = report.last_bytes, out["windows"] = report.windows, out["reference"] = report.reference;
  }
  out["verdict"] = {{"sentence", found.sentence}, {"notes", found.notes}};
  out["verdict"]["order"] =
      listed(found.order, [&](int64_t i) { return Json(report.members[static_cast<size_t>(i)].name); });
  out["warnings"] = report.warnings;
  out["baselines"] = listed(report.baselines, [](const auto& baseline) {
    return Json{{"name", baseline.name}, {"bits_per_byte", baseline.bits}};
  });
  out["curve_columns"] = {"tokens", "seconds", "bits_per_byte"};
  out["members"] = listed(report.members, member_json);
  out["patterns"] = listed(report.patterns, [](const auto& pattern) {
    return Json{{"name", pattern.name}, {"about", pattern.about}, {"rows", pattern.rows}, {"columns", pattern.columns}};
  });
  return laid_out(out, 4) + "\n";
}

}  // namespace kinfolk
