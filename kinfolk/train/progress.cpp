#include "kinfolk/train/progress.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "kinfolk/core/errors.h"

namespace kinfolk {
namespace {

constexpr int64_t kBar = 20;
constexpr auto kRedraw = std::chrono::milliseconds(100);
constexpr auto kPlainLine = std::chrono::seconds(10);
constexpr auto kClear = "\r\033[K";

double seconds_of(Progress::Clock::duration duration) { return std::chrono::duration<double>(duration).count(); }

/// At most `columns` characters of UTF-8 text; control characters (a newline would break the line) become spaces.
std::string cut(const std::string& line, int64_t columns) {
  std::string out;
  int64_t used = 0;
  for (const char c : line) {
    const auto byte = static_cast<unsigned char>(c);
    const bool continues = (byte & 0xc0) == 0x80;
    if (!continues && used++ == columns) break;
    out += byte < 0x20 || byte == 0x7f ? ' ' : c;
  }
  return out;
}

}  // namespace

std::string clock_text(double seconds) {
  if (!std::isfinite(seconds) || seconds < 0 || seconds > 1e9) return "?";
  const auto whole = static_cast<long long>(std::llround(seconds));
  char out[48];
  if (whole >= 3600)
    std::snprintf(out, sizeof out, "%lld:%02lld:%02lld", whole / 3600, whole / 60 % 60, whole % 60);
  else
    std::snprintf(out, sizeof out, "%lld:%02lld", whole / 60, whole % 60);
  return out;
}

Progress::Screen standard_error() {
  Progress::Screen screen;
  const char* kind = std::getenv("TERM");
  screen.terminal = isatty(STDERR_FILENO) && kind != nullptr && std::strcmp(kind, "dumb") != 0;
  winsize size = {};
  if (screen.terminal && ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0) screen.columns = size.ws_col;
  screen.write = [](const std::string& bytes) {
    std::fwrite(bytes.data(), 1, bytes.size(), stderr);
    std::fflush(stderr);
  };
  return screen;
}

Progress::Progress(std::string title, double total) : Progress(std::move(title), total, standard_error()) {}

Progress::Progress(std::string title, double total, Screen screen)
    : title_(std::move(title)), total_(total), screen_(std::move(screen)) {
  begin_ = shown_ = screen_.now();
}

Progress::~Progress() { finish(); }

void Progress::update(double done, const std::string& note) {
  const auto now = screen_.now();
  if (screen_.terminal) {
    if (any_ && now - shown_ < kRedraw) return;
    screen_.write(kClear + cut(line(done, note, now), screen_.columns - 1));
    drawn_ = true;
  } else {
    if (now - shown_ < kPlainLine) return;  // nothing before the first ten seconds either: short jobs are silent
    screen_.write(cut(line(done, note, now), 1000) + "\n");
  }
  any_ = true;
  shown_ = now;
}

void Progress::say(const std::string& line) {
  finish();
  screen_.write(line + "\n");
  any_ = false;  // redraw at the next update
}

void Progress::finish() {
  if (drawn_) screen_.write(kClear);
  drawn_ = false;
}

std::string Progress::line(double done, const std::string& note, Clock::time_point now) const {
  const double elapsed = seconds_of(now - begin_);
  std::string out = title_;
  if (total_ > 0) {
    const double part = std::isfinite(done) ? std::clamp(done / total_, 0.0, 1.0) : 0.0;
    const auto filled = static_cast<int64_t>(part * kBar);
    if (screen_.terminal)
      out += "  [" + std::string(static_cast<size_t>(filled), '#') +
             std::string(static_cast<size_t>(kBar - filled), '-') + "]";
    char percent[16];
    std::snprintf(percent, sizeof percent, "  %3d %%", static_cast<int>(part * 100));
    out += percent;
    out += "  " + clock_text(elapsed);
    if (done > first_ && part < 1) out += ", " + clock_text(elapsed * (total_ - done) / (done - first_)) + " left";
  } else {
    out += "  " + clock_text(elapsed);
  }
  if (!note.empty()) out += "  " + note;
  return out;
}

}  // namespace kinfolk
