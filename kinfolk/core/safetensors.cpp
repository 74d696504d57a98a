#include "kinfolk/core/safetensors.h"

#include <ATen/ops/empty.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <vector>

#include "kinfolk/core/errors.h"
#include "kinfolk/core/file_writer.h"

namespace kinfolk {
namespace {

static_assert(std::endian::native == std::endian::little, "safetensors data are little-endian");
constexpr uint64_t kLargestHeader = 100'000'000;  // the limit of the format's own reader
constexpr size_t kLargestRank = 64;               // of at::TensorIterator
constexpr int64_t kLargest = std::numeric_limits<int64_t>::max();
constexpr auto kMetadata = "__metadata__";

struct Type {
  const char* name;
  at::ScalarType type;
};
constexpr Type kTypes[] = {{"F64", at::kDouble}, {"F32", at::kFloat}, {"F16", at::kHalf},  {"BF16", at::kBFloat16},
                           {"I64", at::kLong},   {"I32", at::kInt},   {"I16", at::kShort}, {"I8", at::kChar},
                           {"U8", at::kByte},    {"BOOL", at::kBool}};

/// Text from a foreign file, safe within one line.
std::string quoted(const nlohmann::json& value) {
  std::string line = value.dump(-1, ' ', true, nlohmann::json::error_handler_t::replace);
  if (line.size() > 100) line = line.substr(0, 97) + "...";
  return line;
}

struct Entry {
  std::string name;
  at::ScalarType type;
  std::vector<int64_t> sizes;
  int64_t begin = 0, end = 0;  // bytes, from the end of the header
};

class Reader {
 public:
  explicit Reader(const std::string& path, const std::string& kind = "checkpoint") : path_(path), kind_(kind) {
    descriptor_ = open(path.c_str(), O_RDONLY | O_CLOEXEC);
    if (descriptor_ < 0) wrong("a file that can be read", std::strerror(errno));
    try {
      read_header();
    } catch (...) {
      close(descriptor_);
      throw;
    }
  }
  ~Reader() { close(descriptor_); }
  Reader(const Reader&) = delete;
  Reader& operator=(const Reader&) = delete;

  std::map<std::string, std::string> metadata;
  std::vector<Entry> entries;

  at::Tensor read(const Entry& entry) const {
    at::Tensor tensor;
    try {
      tensor = at::empty(entry.sizes, at::TensorOptions(entry.type));
    } catch (const std::exception&) {
      wrong(text("memory for tensor ", quoted(entry.name)), text("no room for ", entry.end - entry.begin, " bytes"));
    }
    auto* bytes = static_cast<unsigned char*>(tensor.data_ptr());
    const size_t count = static_cast<size_t>(entry.end - entry.begin);
    if (count > 0) read_bytes(bytes, count, data_ + entry.begin);
    if (entry.type == at::kBool && std::any_of(bytes, bytes + count, [](unsigned char b) { return b > 1; }))
      wrong(text("bytes 0 and 1 in the BOOL tensor ", quoted(entry.name)), "another byte");
    return tensor;
  }

 private:
  template <class Expected, class Found>
  [[noreturn]] void wrong(const Expected& expected, const Found& found) const {
    fail("[", kind_, "] ", path_, ": expected ", expected, "; found ", found);
  }

  void read_bytes(void* out, size_t count, int64_t from) const {
    char* at = static_cast<char*>(out);
    while (count > 0) {
      const ssize_t got = pread(descriptor_, at, std::min(count, size_t(1) << 30), from);
      if (got < 0 && errno == EINTR) continue;
      if (got < 0) wrong("bytes that can be read", std::strerror(errno));
      if (got == 0) wrong(text("a byte at ", from), "the end of the file (did it shrink while it was read?)");
      at += got;
      from += got;
      count -= static_cast<size_t>(got);
    }
  }

  void read_header() {
    struct stat status;
    if (fstat(descriptor_, &status) != 0) wrong("a file that can be read", std::strerror(errno));
    if (!S_ISREG(status.st_mode)) wrong("a file", S_ISDIR(status.st_mode) ? "a folder" : "something that is no file");
    const int64_t size = status.st_size;
    if (size < 8) wrong("a safetensors file, at least 8 bytes", text(size, " bytes"));
    uint64_t length = 0;
    read_bytes(&length, sizeof length, 0);
    if (length > kLargestHeader) wrong(text("a header of at most ", kLargestHeader, " bytes"), text(length, " bytes"));
    if (static_cast<int64_t>(length) > size - 8)
      wrong(text("a header of ", length, " bytes"), text("only ", size - 8, " bytes after its length"));
    std::string header(length, '\0');
    read_bytes(header.data(), length, 8);
    data_ = 8 + static_cast<int64_t>(length);
    const nlohmann::json parsed = parse(header);
    for (const auto& [name, value] : parsed.items()) {
      if (name == kMetadata)
        read_metadata(value);
      else
        entries.push_back(read_entry(name, value));
    }
    check_layout(size - data_);
  }

  nlohmann::json parse(const std::string& header) const {
    std::set<std::string> names;
    std::optional<std::string> twice;
    const auto watch = [&](int depth, nlohmann::json::parse_event_t event, nlohmann::json& value) {
      if (depth == 1 && event == nlohmann::json::parse_event_t::key && !names.insert(value.get<std::string>()).second)
        twice = value.get<std::string>();
      return true;
    };
    nlohmann::json parsed;
    try {
      parsed = nlohmann::json::parse(header, watch);
    } catch (const nlohmann::json::exception& error) {
      wrong("a JSON header", quoted(error.what()));
    }
    if (twice) wrong("every name once", text(quoted(*twice), " twice"));
    if (!parsed.is_object()) wrong("a JSON object as header", parsed.type_name());
    return parsed;
  }

  void read_metadata(const nlohmann::json& value) {
    if (!value.is_object()) wrong("__metadata__ as an object of strings", value.type_name());
    for (const auto& [key, entry] : value.items()) {
      if (!entry.is_string()) wrong(text("a string for metadata ", quoted(key)), entry.type_name());
      metadata[key] = entry.get<std::string>();
    }
  }

  Entry read_entry(const std::string& name, const nlohmann::json& value) const {
    const std::string of = text(" for tensor ", quoted(name));
    if (!value.is_object()) wrong(text("an object with dtype, shape and data_offsets", of), value.type_name());
    for (const char* key : {"dtype", "shape", "data_offsets"})
      if (!value.contains(key)) wrong(text(key, of), "none");
    Entry entry;
    entry.name = name;
    const auto& dtype = value["dtype"];
    const Type* type =
        std::find_if(std::begin(kTypes), std::end(kTypes), [&](const Type& t) { return dtype == t.name; });
    if (type == std::end(kTypes)) wrong(text("dtype F64 F32 F16 BF16 I64 I32 I16 I8 U8 or BOOL", of), quoted(dtype));
    entry.type = type->type;
    const auto& shape = value["shape"];
    if (!shape.is_array() || shape.size() > kLargestRank)
      wrong(text("a shape of at most ", kLargestRank, " sizes", of), quoted(shape));
    int64_t extent =
        static_cast<int64_t>(c10::elementSize(entry.type));  // zeros as ones: strides must not overflow either
    bool empty = false;
    for (const auto& element : shape) {
      const int64_t size = whole_number(element, "a size", of);
      empty = empty || size == 0;
      if (__builtin_mul_overflow(extent, std::max<int64_t>(size, 1), &extent))
        wrong(text("a shape whose bytes can be counted", of), quoted(shape));
      entry.sizes.push_back(size);
    }
    const auto& offsets = value["data_offsets"];
    if (!offsets.is_array() || offsets.size() != 2) wrong(text("two data_offsets", of), quoted(offsets));
    entry.begin = whole_number(offsets[0], "an offset", of);
    entry.end = whole_number(offsets[1], "an offset", of);
    const int64_t bytes = empty ? 0 : extent;
    if (entry.end < entry.begin || entry.end - entry.begin != bytes)
      wrong(text(bytes, " bytes (shape ", quoted(shape), " of ", type->name, ")", of),
            text("data_offsets ", quoted(offsets)));
    return entry;
  }

  int64_t whole_number(const nlohmann::json& value, const char* what, const std::string& of) const {
    if (!value.is_number_unsigned() || value.get<uint64_t>() > static_cast<uint64_t>(kLargest))
      wrong(text(what, " from 0 to ", kLargest, of), quoted(value));
    return static_cast<int64_t>(value.get<uint64_t>());
  }

  /// The tensors must cover the data once: no overlap, no gap, nothing left, nothing beyond.
  void check_layout(int64_t size) const {
    std::vector<const Entry*> order;
    for (const Entry& entry : entries) order.push_back(&entry);
    std::sort(order.begin(), order.end(),
              [](const Entry* a, const Entry* b) { return std::pair(a->begin, a->end) < std::pair(b->begin, b->end); });
    int64_t covered = 0;
    for (const Entry* entry : order) {
      if (entry->end > size)
        wrong(text("tensor ", quoted(entry->name), " within ", size, " bytes of data"),
              text("data_offsets up to ", entry->end, " (is the file cut short?)"));
      if (entry->begin != covered)
        wrong(text("tensor ", quoted(entry->name), " to start where the one before it ends, at ", covered),
              text(entry->begin, entry->begin < covered ? " (they overlap)" : " (a gap)"));
      covered = entry->end;
    }
    if (covered != size) wrong(text(covered, " bytes of data"), text(size, " bytes"));
  }

  std::string path_, kind_;
  int descriptor_ = -1;
  int64_t data_ = 0;  // where the data begin
};

}  // namespace

TensorFile read_tensors(const std::string& path, const std::string& kind) {
  Reader reader(path, kind);
  TensorFile file;
  file.metadata = reader.metadata;
  for (const Entry& entry : reader.entries) file.tensors.emplace(entry.name, reader.read(entry));
  return file;
}

std::map<std::string, std::string> read_metadata(const std::string& path) { return Reader(path).metadata; }

void write_tensors(const std::string& path, const TensorFile& file) {
  const auto wrong = [&](const auto&... parts) { fail("[checkpoint] ", path, ": expected ", parts...); };
  nlohmann::json header = nlohmann::json::object();
  if (!file.metadata.empty()) header[kMetadata] = file.metadata;
  std::vector<std::pair<std::string, at::Tensor>> order(file.tensors.begin(), file.tensors.end());
  for (const auto& [name, tensor] : order) {
    if (!tensor.defined()) wrong("a tensor named ", quoted(name), "; found an undefined one");
    if (name == kMetadata) wrong("a tensor name other than ", kMetadata, "; found that one");
  }
  std::stable_sort(order.begin(), order.end(),
                   [](const auto& a, const auto& b) { return a.second.element_size() > b.second.element_size(); });
  int64_t offset = 0;
  for (const auto& [name, tensor] : order) {
    const Type* type = std::find_if(std::begin(kTypes), std::end(kTypes),
                                    [&, &stored = tensor](const Type& t) { return stored.scalar_type() == t.type; });
    if (type == std::end(kTypes) || tensor.layout() != at::kStrided)
      wrong("tensor ", quoted(name), " dense, of a type F64 F32 F16 BF16 I64 I32 I16 I8 U8 or BOOL; found ",
            c10::toString(tensor.scalar_type()));
    const int64_t end = offset + tensor.numel() * tensor.element_size();
    header[name] = {{"dtype", type->name}, {"shape", tensor.sizes().vec()}, {"data_offsets", {offset, end}}};
    offset = end;
  }
  std::string line;
  try {
    line = header.dump();
  } catch (const nlohmann::json::exception&) {
    wrong("UTF-8 in names and metadata; found other bytes");
  }
  line.resize((line.size() + 7) / 8 * 8, ' ');
  if (line.size() > kLargestHeader) wrong("a header of at most ", kLargestHeader, " bytes; found ", line.size());
  const uint64_t length = line.size();
  FileWriter out(path);
  out.write(&length, sizeof length);
  out.write(line);
  for (const auto& [name, tensor] : order) {
    const at::Tensor dense = tensor.detach().cpu().contiguous().resolve_conj().resolve_neg();
    if (dense.numel() > 0) out.write(dense.const_data_ptr(), static_cast<size_t>(dense.numel() * dense.element_size()));
  }
  out.commit();
}

}  // namespace kinfolk
