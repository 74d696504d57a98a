// Resident memory of this process, as the kernel counts it.
#pragma once
#include <cstdint>

namespace kinfolk {

int64_t resident_bytes();       ///< now
int64_t peak_resident_bytes();  ///< highest since the start or the last reset
void reset_peak();              ///< where the kernel allows it; else the peak goes on from the start

}  // namespace kinfolk
