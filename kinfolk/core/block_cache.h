// Large blocks of tensors, kept for the next tensor of their size.
#pragma once
#include <cstdint>

namespace kinfolk {

/// From here on, tensors on the CPU of 1 MiB and more take blocks that earlier ones have freed. malloc either gives
/// such blocks back, and the kernel clears every page of them anew, or leaves holes between them: a training step of
/// long sequences then holds twice what its tensors hold. Here a block goes to a tensor of its size (up to an eighth
/// more), and before more is taken from the kernel, kept blocks are given back until those in use and those kept
/// together are at most an eighth (and 16 MiB) above the most that was ever in use at once. Smaller tensors stay with
/// malloc. For the whole process, once, at any time; further calls do nothing.
void keep_large_blocks();

int64_t kept_block_bytes();    ///< free, and not given back
void give_back_kept_blocks();  ///< all of them, and what counts as the most ever in use starts anew

}  // namespace kinfolk
