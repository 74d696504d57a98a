#include "kinfolk/kernels/squared_distance.h"

#include "kinfolk/kernels/isa.h"

namespace kinfolk::kernels {
namespace squared {
#define KINFOLK_BODY "kinfolk/kernels/squared_distance_body.h"
#include "kinfolk/kernels/each_isa.h"
}  // namespace squared

SquaredDistance squared_distance(KeyType type) {
  if (type == KeyType::float16) return KINFOLK_PICK(squared, of_float16);
  if (type == KeyType::bfloat16) return KINFOLK_PICK(squared, of_bfloat16);
  return KINFOLK_PICK(squared, of_float32);
}

}  // namespace kinfolk::kernels
