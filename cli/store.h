// The datastore of heads that keep one (knn_lm), filled before a run is read or written with.
#pragma once
#include <string>

#include "kinfolk/train/checkpoint.h"
#include "kinfolk/train/data/bytes.h"

namespace kinfolk {

/// Hidden states that a store is given at most.
constexpr int64_t kStored = 200000;

/// Fills the store of a head that wants one: from the text at `given`, or, when that is empty, from the
/// training text of the run, which must still be there and the same; "none" leaves it empty, and the wrapped head
/// answers alone. Nothing for other heads; throws UsageError when `given` is not empty then.
void prepare_store(LoadedRun& run, const std::string& given);

/// A datastore is filled from text: refuses a member that wants one where images are read, unless `given` is none.
void refuse_store_of_images(const LoadedRun& run, const std::string& given);

}  // namespace kinfolk
