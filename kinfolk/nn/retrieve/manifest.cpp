#include <cstring>
#include <nlohmann/json.hpp>

#include "kinfolk/core/errors.h"
#include "kinfolk/core/file_writer.h"
#include "kinfolk/nn/retrieve/datastore.h"

namespace kinfolk {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

constexpr auto kFormat = "kinfolk-datastore-1";

[[noreturn]] void wrong(const std::string& folder, const std::string& expected, const std::string& found) {
  fail("[datastore] ", folder, ": expected ", expected, "; found ", found);
}

/// A whole number that is at least 0.
int64_t count_of(const Json& value) {
  const auto number = value.get<int64_t>();
  if (!value.is_number_integer() || number < 0 || number > (int64_t{1} << 48)) fail("a count of ", value.dump());
  return number;
}

StoreManifest from_json(const Json& json) {
  StoreManifest out;
  out.model = json.at("model").get<std::string>();
  out.recipe = json.at("recipe").get<std::string>();
  out.run = json.at("run").get<std::string>();
  out.type = json.at("type").get<std::string>();
  out.metric = json.at("metric").get<std::string>();
  out.width = count_of(json.at("width"));
  out.vocabulary = count_of(json.at("vocabulary"));
  key_type(out.type);
  if (out.width < 1 || out.width > (1 << 24) || out.vocabulary < 1) fail("a width of ", out.width);
  int64_t all = 0;
  for (const Json& item : json.at("parts")) {
    StoreManifest::Part part;
    part.name = item.at("name").get<std::string>();
    if (part.name.rfind("part-", 0) != 0 || part.name.find('/') != std::string::npos) fail("a part ", part.name);
    part.count = count_of(item.at("count"));
    int64_t counted = 0;
    for (const Json& one : item.at("texts")) {
      StoredText text{one.at("path").get<std::string>(), count_of(one.at("first")), count_of(one.at("count")),
                      count_of(one.at("begin"))};
      if (text.first != all + counted) fail("a text that begins at entry ", text.first, " instead of ", all + counted);
      counted += text.count;
      part.texts.push_back(std::move(text));
    }
    if (counted != part.count) fail("texts of ", counted, " entries in a part of ", part.count);
    all += part.count;
    out.parts.push_back(std::move(part));
  }
  if (const auto found = json.find("tuned"); found != json.end()) {
    out.tuned = {count_of(found->at("k")),
                 found->at("lambda").get<double>(),
                 found->at("temperature").get<double>(),
                 found->at("text").get<std::string>(),
                 found->at("bits_per_byte").get<double>(),
                 found->at("bits_per_byte_without").get<double>()};
    const auto& [k, lambda, temperature, path, bits, before] = out.tuned;
    if (k < 1 || !(lambda >= 0 && lambda < 1) || !(temperature > 0)) fail("tuned values out of range");
  }
  return out;
}

}  // namespace

StoreManifest read_manifest(const std::string& folder) {
  const std::string path = (fs::path(folder) / "manifest.json").string();
  std::ifstream in(path, std::ios::binary);
  if (!in) {
    std::error_code error;
    wrong(folder, "a datastore, as kinfolk datastore build makes it",
          fs::is_directory(folder, error) ? "a folder without manifest.json" : "none");
  }
  const Json json = Json::parse(in, nullptr, false);
  if (json.is_discarded() || !json.is_object()) wrong(folder, "a manifest.json that can be read", "another text");
  if (json.value("format", "") != kFormat) wrong(folder, text("format ", kFormat), json.value("format", "none"));
  try {
    return from_json(json);
  } catch (const std::exception& error) {
    wrong(folder, "a manifest.json of this format", error.what());
  }
}

void write_manifest(const std::string& folder, const StoreManifest& manifest) {
  int64_t count = 0;
  Json parts = Json::array();
  for (const auto& part : manifest.parts) {
    Json texts = Json::array();
    for (const auto& one : part.texts) {
      texts.push_back({{"path", one.path}, {"first", one.first}, {"count", one.count}, {"begin", one.begin}});
    }
    parts.push_back({{"name", part.name}, {"count", part.count}, {"texts", std::move(texts)}});
    count += part.count;
  }
  Json json = {{"format", kFormat},     {"model", manifest.model},   {"recipe", manifest.recipe},
               {"run", manifest.run},   {"width", manifest.width},   {"vocabulary", manifest.vocabulary},
               {"type", manifest.type}, {"metric", manifest.metric}, {"count", count}};
  if (const Tuned& tuned = manifest.tuned; tuned.k > 0) {
    json["tuned"] = {{"k", tuned.k},       {"lambda", tuned.lambda},      {"temperature", tuned.temperature},
                     {"text", tuned.text}, {"bits_per_byte", tuned.bits}, {"bits_per_byte_without", tuned.before}};
  }
  json["parts"] = std::move(parts);
  write_file((fs::path(folder) / "manifest.json").string(),
             json.dump(1, ' ', false, Json::error_handler_t::replace) + "\n");
}

}  // namespace kinfolk
