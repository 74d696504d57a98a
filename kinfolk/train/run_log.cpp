#include "kinfolk/train/run_log.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <nlohmann/json.hpp>

#include "kinfolk/core/errors.h"
#include "kinfolk/core/file_writer.h"

namespace kinfolk {
namespace {

double number(const nlohmann::ordered_json& object, const char* key) {
  const auto found = object.find(key);
  if (found == object.end() || found->is_null()) return std::nan("");  // JSON has no NaN and no infinity
  return found->get<double>();
}

}  // namespace

std::string to_json(const LogRow& row) {
  nlohmann::ordered_json out = {{"event", row.validation ? "valid" : "train"},
                                {"step", row.step},
                                {"tokens", row.tokens},
                                {"seconds", row.seconds},
                                {"work", row.work},
                                {"loss", row.loss},
                                {row.pixels ? "bpd" : "bpb", row.bits}};
  if (std::isfinite(row.accuracy)) out["accuracy"] = row.accuracy;
  if (!row.validation) {
    out["lr"] = row.rate;
    out["norm"] = row.norm;
    out["tokens_per_second"] = row.tokens_per_second;
    out["skipped"] = row.skipped;
    if (!row.losses.empty()) out["losses"] = row.losses;
  }
  out["rss"] = row.peak_rss;
  return out.dump();
}

std::vector<LogRow> read_log(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  if (!in) fail("[log] ", path, ": expected a file that can be read; found ", std::strerror(errno));
  std::vector<LogRow> rows;
  std::string line;
  while (std::getline(in, line)) {
    if (in.eof()) break;  // no newline: the run was killed while it wrote
    try {
      const auto object = nlohmann::ordered_json::parse(line);
      LogRow row;
      row.validation = object.at("event") == "valid";
      row.step = object.at("step");
      row.tokens = object.at("tokens");
      row.seconds = number(object, "seconds");
      row.work = number(object, "work");
      row.loss = number(object, "loss");
      row.pixels = object.contains("bpd");
      row.bits = number(object, row.pixels ? "bpd" : "bpb");
      if (object.contains("accuracy")) row.accuracy = number(object, "accuracy");
      row.peak_rss = object.at("rss");
      if (!row.validation) {
        row.rate = number(object, "lr");
        row.norm = number(object, "norm");
        row.tokens_per_second = number(object, "tokens_per_second");
        row.skipped = object.at("skipped");
      }
      if (const auto losses = object.find("losses"); losses != object.end())
        for (const auto& [name, value] : losses->items())
          row.losses[name] = value.is_null() ? std::nan("") : value.get<double>();
      rows.push_back(std::move(row));
    } catch (const nlohmann::json::exception&) {
      fail("[log] ", path, ":", rows.size() + 1, ": expected a row of a training log; found ", line.substr(0, 60));
    }
  }
  return rows;
}

RunLog::RunLog(const std::string& path, int64_t step) : path_(path) {
  std::string kept;
  if (std::filesystem::exists(path))
    for (const auto& row : read_log(path))
      if (row.step <= step) kept += to_json(row) + "\n";
  write_file(path, kept);
  descriptor_ = open(path.c_str(), O_WRONLY | O_APPEND | O_CLOEXEC);
  if (descriptor_ < 0) fail("[log] ", path, ": expected a file that can be written; found ", std::strerror(errno));
}

RunLog::~RunLog() { close(descriptor_); }

void RunLog::add(const LogRow& row) {
  const std::string line = to_json(row) + "\n";
  if (const int error = write_fully(descriptor_, line.data(), line.size())) {
    fail("[log] ", path_, ": expected room to write a row; found ", std::strerror(error));
  }
}

}  // namespace kinfolk
