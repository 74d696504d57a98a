#include "kinfolk/kernels/attend.h"

#include <cmath>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <memory>
#include <new>
#include <utility>

#include "kinfolk/kernels/attend_drop.h"
#include "kinfolk/kernels/attend_sight.h"
#include "kinfolk/kernels/isa.h"

namespace kinfolk::kernels {
namespace {

/// Few queries: the keys are read once, as they lie, for all heads of a group.
bool attend_few(const Attend& a) { return a.length <= 6 && a.width % 16 == 0; }

}  // namespace

namespace attend {
#define KINFOLK_BODY "kinfolk/kernels/attend_body.h"
#include "kinfolk/kernels/each_isa.h"
}  // namespace attend

int64_t attend_table_columns(int64_t distances) { return attend_padded(distances + 2 * kAttendMargin); }

void attend_pack_table(const float* table, int64_t distances, float unit, float* out) {
  const int64_t columns = attend_table_columns(distances);
  std::memset(out, 0, static_cast<size_t>(columns) * 4);
  for (int64_t t = 0; t < distances; ++t) out[kAttendMargin + distances - 1 - t] = table[t] * unit;
}

int64_t attend_panels_size(int64_t distances, int64_t width) {
  return attend_table_columns(distances) / 16 * (width * 16 + 16);
}
int64_t attend_rows_size(int64_t distances, int64_t width) {
  return attend_table_columns(distances) * attend_padded(width);
}

void attend_pack_by(const float* r, int64_t row, int64_t distances, int64_t width, float* panels, float* rows) {
  std::memset(panels, 0, static_cast<size_t>(attend_panels_size(distances, width)) * 4);
  std::memset(rows, 0, static_cast<size_t>(attend_rows_size(distances, width)) * 4);
  for (int64_t t = 0; t < distances; ++t) {
    const int64_t y = kAttendMargin + distances - 1 - t;
    std::memcpy(rows + y * attend_padded(width), r + t * row, static_cast<size_t>(width) * 4);
    float* panel = panels + y / 16 * (width * 16 + 16) + y % 16;
    for (int64_t i = 0; i < width; ++i) panel[i * 16] = r[t * row + i];
  }
}

int64_t attend_forward_items(const Attend& a) {
  return a.batch * (attend_few(a) ? a.groups : a.heads) * ((a.length + kAttendRows - 1) / kAttendRows);
}
void attend_forward(const Attend& a, int64_t begin, int64_t end) {
  static const auto run = KINFOLK_PICK(attend, forward);
  run(a, begin, end);
}

int64_t attend_backward_items(const Attend& a) { return a.batch * a.groups; }
void attend_backward(const Attend& a, int64_t begin, int64_t end) {
  static const auto run = KINFOLK_PICK(attend, backward);
  run(a, begin, end);
}

}  // namespace kinfolk::kernels
