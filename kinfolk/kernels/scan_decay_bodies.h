// Both forms of the decays for one instruction set.
#include "kinfolk/kernels/scan_decay_body.h"
//
#include "kinfolk/kernels/scan_decay_channel_body.h"
