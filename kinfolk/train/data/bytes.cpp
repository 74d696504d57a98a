#include "kinfolk/train/data/bytes.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <limits>
#include <set>
#include <utility>

#include "kinfolk/core/errors.h"
#include "kinfolk/train/data/images.h"
#include "kinfolk/train/data/recall.h"

namespace kinfolk {
namespace {

namespace fs = std::filesystem;

[[noreturn]] void wrong(const std::string& path, const std::string& expected, const std::string& found) {
  refuse("[data] ", path, ": expected ", expected, "; found ", found);
}

std::string size_text(int64_t bytes) {
  return bytes == 0 ? "an empty file" : text(bytes, bytes == 1 ? " byte" : " bytes");
}

struct Found {
  std::string path;
  int64_t size = 0;
};

class Finder {
 public:
  void walk(const std::string& folder) {
    struct stat about = {};
    if (stat(folder.c_str(), &about) != 0) wrong(folder, "a folder that can be read", std::strerror(errno));
    if (!seen_.emplace(about.st_dev, about.st_ino).second) return;  // by a link: a loop, or a second way to it
    std::error_code error;
    std::vector<fs::path> names;
    for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
      names.push_back(it->path());
    }
    if (error) wrong(folder, "a folder that can be read", error.message());
    std::sort(names.begin(), names.end());  // of two ways to one folder the same is taken everywhere
    for (const auto& name : names) add(name);
  }
  std::vector<Found> sorted() {
    std::sort(files_.begin(), files_.end(), [](const Found& a, const Found& b) { return a.path < b.path; });
    return std::move(files_);
  }
  bool any_file = false;

 private:
  void add(const fs::path& path) {
    if (path.filename().string().starts_with('.')) return;
    struct stat about = {};
    if (stat(path.c_str(), &about) != 0) {
      wrong(path.string(), "a file or a folder that can be read", std::strerror(errno));
    }
    if (S_ISDIR(about.st_mode)) walk(path.string());
    if (!S_ISREG(about.st_mode)) return;
    any_file = true;
    if (about.st_size > 0) files_.push_back({path.string(), about.st_size});
  }

  std::set<std::pair<dev_t, ino_t>> seen_;
  std::vector<Found> files_;
};

int64_t quarter_of_memory() {
  const auto pages = static_cast<int64_t>(sysconf(_SC_PHYS_PAGES)), page = static_cast<int64_t>(sysconf(_SC_PAGESIZE));
  return pages > 0 && page > 0 ? pages / 4 * page : int64_t{1} << 30;
}

/// Appends a file. The size that was found before is a hint: what read() gives is what counts.
void append(Text& out, const Found& file, int64_t most) {
  const int descriptor = open(file.path.c_str(), O_RDONLY | O_CLOEXEC);
  if (descriptor < 0) wrong(file.path, "a file that can be read", std::strerror(errno));
  Document document{file.path, out.size(), 0};
  auto used = static_cast<size_t>(out.size());
  int error = 0;
  for (;;) {
    const auto left =
        static_cast<size_t>(std::max<int64_t>(file.size - (static_cast<int64_t>(used) - document.begin), 0));
    out.bytes.resize(used + std::max<size_t>(std::min<size_t>(left, size_t{1} << 28), 4096));
    const ssize_t got = ::read(descriptor, out.bytes.data() + used, out.bytes.size() - used);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) error = errno;
    if (got <= 0) break;
    used += static_cast<size_t>(got);
    if (static_cast<int64_t>(used) > most) error = EFBIG;
    if (error) break;
  }
  close(descriptor);
  out.bytes.resize(used);
  if (error) wrong(file.path, "a file that can be read", std::strerror(error));
  document.end = out.size();
  if (document.end > document.begin) out.documents.push_back(std::move(document));
}

Text part(const Text& whole, int64_t begin, int64_t end) {
  Text out;
  out.bytes.assign(whole.bytes.begin() + begin, whole.bytes.begin() + end);
  for (const auto& d : whole.documents) {
    const int64_t from = std::max(d.begin, begin), to = std::min(d.end, end);
    if (from < to) out.documents.push_back({d.path, from - begin, to - begin});
  }
  return out;
}

std::string percent(int64_t part, int64_t whole) {
  return text(std::llround(1000.0 * static_cast<double>(part) / static_cast<double>(whole)) / 10.0, " %");
}

std::string name_of(const Document& d) { return fs::path(d.path).filename().string(); }

/// First and last + 1 of the documents that validate; they lie side by side.
std::pair<size_t, size_t> choose_documents(const Text& all) {
  const auto& documents = all.documents;
  const auto size = [&](size_t i) { return documents[i].end - documents[i].begin; };
  size_t first = documents.size();
  int64_t held = 0;
  while (first > 1 && held * 20 < all.size()) held += size(--first);
  if (held * 5 <= all.size()) return {first, documents.size()};
  const auto away = [&](size_t i) {
    return std::abs(static_cast<double>(size(i)) - 0.1 * static_cast<double>(all.size()));
  };
  size_t best = 0;
  for (size_t i = 1; i < documents.size(); ++i)
    if (away(i) <= away(best)) best = i;
  return {best, best + 1};
}

}  // namespace

uint64_t Text::fingerprint() const {
  uint64_t hash = 0xcbf29ce484222325u;
  const auto add = [&](uint8_t byte) { hash = (hash ^ byte) * 0x100000001b3u; };
  for (const uint8_t byte : bytes) add(byte);
  for (const auto& d : documents)
    for (int shift = 0; shift < 64; shift += 8) add(static_cast<uint8_t>(static_cast<uint64_t>(d.end) >> shift));
  return hash;
}

Text read_text(const std::string& path, const ReadLimits& limits) {
  if (path.empty()) refuse("[data] expected the path of a file or a folder; found an empty path");
  struct stat about = {};
  if (stat(path.c_str(), &about) != 0) wrong(path, "a file or a folder that can be read", std::strerror(errno));
  std::vector<Found> files;
  if (S_ISDIR(about.st_mode)) {
    Finder finder;
    finder.walk(path);
    files = finder.sorted();
    if (files.empty()) {
      wrong(path, "a folder with text", finder.any_file ? "only empty files" : "no files (hidden ones do not count)");
    }
  } else if (S_ISREG(about.st_mode)) {
    files.push_back({path, about.st_size});
  } else {
    wrong(path, "a file or a folder", "a device, a pipe or a socket");
  }
  const int64_t most = limits.at_most > 0 ? limits.at_most : quarter_of_memory();
  int64_t sum = 0;
  for (const auto& file : files) {
    sum = file.size > std::numeric_limits<int64_t>::max() - sum ? std::numeric_limits<int64_t>::max() : sum + file.size;
  }
  if (sum > most) {
    wrong(path, text("at most ", most, " bytes", limits.at_most > 0 ? "" : " (a quarter of this machine's memory)"),
          size_text(sum));
  }
  Text out;
  out.bytes.reserve(static_cast<size_t>(sum) + 4096);
  for (const auto& file : files) append(out, file, most);
  if (out.size() < limits.at_least) {
    wrong(path, text("at least ", limits.at_least, limits.at_least == 1 ? " byte" : " bytes"), size_text(out.size()));
  }
  return out;
}

Corpus read_corpus(const std::string& path, const std::string& valid_path, const ReadLimits& limits) {
  if (holds_recall(path) || holds_recall(valid_path)) {
    if (!valid_path.empty()) refuse("[valid] expected none with a task, which draws what it measures on; found one");
    return recall_corpus(path);
  }
  if (holds_images(path) || holds_images(valid_path)) return read_image_corpus(path, valid_path);
  Corpus corpus;
  corpus.path = path;
  ReadLimits both = limits;
  if (valid_path.empty()) both.at_least = std::max<int64_t>(limits.at_least, 40);  // 2 bytes of it must validate
  Text all = read_text(path, both);
  const int64_t size = all.size();
  if (!valid_path.empty()) {
    corpus.valid = read_text(valid_path, {2, limits.at_most});
    corpus.train = std::move(all);
    corpus.split = text("validates on ", valid_path);
  } else if (all.documents.size() == 1) {
    const int64_t border = size - size / 20;
    corpus.train = part(all, 0, border);
    corpus.valid = part(all, border, size);
    corpus.split = text("validates on the last ", percent(size - border, size), " of ", name_of(all.documents[0]));
  } else {
    const auto [first, last] = choose_documents(all);
    const int64_t begin = all.documents[first].begin, end = all.documents[last - 1].end;
    corpus.valid = part(all, begin, end);
    corpus.train = part(all, 0, begin);
    const Text after = part(all, end, size);
    for (const auto& d : after.documents) {
      corpus.train.documents.push_back({d.path, d.begin + begin, d.end + begin});
    }
    corpus.train.bytes.insert(corpus.train.bytes.end(), after.bytes.begin(), after.bytes.end());
    corpus.split = text("validates on ", percent(end - begin, size), ": ", name_of(all.documents[first]),
                        last - first > 1 ? text(" to ", name_of(all.documents[last - 1])) : "");
    if (corpus.valid.size() < 2) wrong(path, "at least 2 bytes that validate", size_text(corpus.valid.size()));
  }
  return corpus;
}

}  // namespace kinfolk
