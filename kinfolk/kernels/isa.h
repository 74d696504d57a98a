// Which instruction set the kernels use: the best of this machine, or less when the environment's KINFOLK_ISA asks for
// it
// ("avx512", "avx2", "baseline").
#pragma once

namespace kinfolk::kernels {

enum class Isa { baseline, avx2, avx512 };
Isa isa();
const char* isa_name();
bool multiplies_bytes();  ///< 64 at a time; where avx512 is used
bool has_amx_bf16();      ///< of the machine, whatever was asked for

#if defined(__x86_64__)
#define KINFOLK_PICK(space, function)             \
  (isa() == Isa::avx512 ? space::avx512::function \
   : isa() == Isa::avx2 ? space::avx2::function   \
                        : space::baseline::function)
#else
#define KINFOLK_PICK(space, function) (space::baseline::function)
#endif

}  // namespace kinfolk::kernels
