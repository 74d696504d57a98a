// The datastore of heads that retrieve (knn_lm, spalm), attached or filled before a run is read or written with.
#pragma once
#include <span>
#include <string>
#include <vector>

#include "kinfolk/nn/retrieve/datastore.h"
#include "kinfolk/train/checkpoint.h"
#include "kinfolk/train/data/bytes.h"
#include "kinfolk/train/trainer.h"

namespace kinfolk {

/// Hidden states that a store in memory is given at most.
constexpr int64_t kStored = 200000;

/// What `--store` says of itself in eval and generate.
constexpr auto kStoreHelp =
    "A datastore (kinfolk datastore build) that the run retrieves from: a member without one is given the head knn_lm "
    "(--set head.k, head.lambda, head.temperature, head.search); or, of knn_lm and spalm, a text whose hidden states "
    "are kept in memory; without it these take the text that the run was trained on; none: do without";

/// The run as it will be used with `given`: a member without a head that retrieves is given knn_lm when that is a
/// datastore, and of `sets` those that are the head's go there.
LoadedRun load_with_store(const std::string& file, const std::vector<std::string>& sets, const std::string& given);

/// Attaches the datastore at `given`, checked for whose it is. Otherwise fills the store in memory of a head that wants
/// one: from the text at `given`, or, when that is empty, from the training text of the run, which must still be there
/// and the same; "none" leaves it empty, and the wrapped head answers alone. Nothing for other heads; throws UsageError
/// when `given` is not empty then. Of `scored`, the text that will be read with places, own entries are never found.
void prepare_store(LoadedRun& run, const std::string& given, const std::vector<std::string>& sets = {},
                   std::span<const uint8_t> scored = {});

/// Training with a datastore: it is attached to the model, and own entries of the text being read are not found.
void retrieve_while_training(TrainHooks& hooks, const std::string& store);

/// Refuses a member whose head has nothing that could learn to retrieve.
void check_learns_to_retrieve(const Recipe& recipe, const Size& size);

/// A datastore is filled from text: refuses a member that wants one where images are read, unless `given` is none.
void refuse_store_of_images(const LoadedRun& run, const std::string& given);

/// The options of a head that were set by hand: "k" of "head.k=8".
std::vector<std::string> set_in_head(const std::vector<std::string>& sets);

}  // namespace kinfolk
