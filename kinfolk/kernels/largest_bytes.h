// The search of largest.h where the machine multiplies bytes: products of queries and keys that are rounded to a byte a
// coordinate say which keys cannot be among the best, and the others' products are computed in full. The result is the
// same; most products cost a quarter.
#pragma once
#include "kinfolk/kernels/largest.h"

namespace kinfolk::kernels {

/// Whether this machine can, and gains by it: many queries, keys that lie together.
bool bytes_serve(const LargestSearch& search);
void search_largest_bytes(const LargestSearch& search, float* scratch);

}  // namespace kinfolk::kernels
