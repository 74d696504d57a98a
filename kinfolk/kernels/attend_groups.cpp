#include "kinfolk/kernels/attend_groups.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <memory>
#include <new>
#include <vector>

#include "kinfolk/kernels/attend.h"
#include "kinfolk/kernels/attend_drop.h"
#include "kinfolk/kernels/isa.h"

namespace kinfolk::kernels {
namespace groups {
#define KINFOLK_BODY "kinfolk/kernels/attend_groups_body.h"
#include "kinfolk/kernels/each_isa.h"
}  // namespace groups

void attend_groups_forward(const AttendGroups& a) {
  static const auto run = KINFOLK_PICK(groups, forward);
  run(a);
}

void attend_groups_backward(const AttendGroups& a) {
  static const auto run = KINFOLK_PICK(groups, backward);
  run(a);
}

}  // namespace kinfolk::kernels
