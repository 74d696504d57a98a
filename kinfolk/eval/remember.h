// Hidden states of a text in its order, each with the byte that followed: what datastores are filled with.
#pragma once
#include <cstdint>
#include <functional>
#include <span>
#include <string>

#include "kinfolk/nn/model.h"
#include "kinfolk/nn/retrieve/datastore.h"
#include "kinfolk/nn/retrieve/writer.h"

namespace kinfolk {

/// Hidden states [n, D] after the last norm and the bytes int64 [n] that followed, one behind the other from the first
/// byte of the text on.
using HiddenSink = std::function<void(const Tensor& hidden, const Tensor& next)>;

/// Reads the first `limit` + 1 bytes at most. A member whose state is bounded reads on from start to end; any other in
/// windows of `context` bytes that overlap by half, so that all states but the first few have at least half a window
/// before them. No gradient; the model is in evaluation mode meanwhile.
void each_hidden(Model& model, std::span<const uint8_t> text, int64_t limit, const HiddenSink& sink,
                 const std::function<void(double share)>& progress = {});

/// Fills the store in memory of a head that wants one with (hidden state -> next byte) of the first `limit` bytes of
/// the text.
void fill_store(Model& model, std::span<const uint8_t> text, int64_t limit,
                const std::function<void(double share)>& progress = {});

/// Appends a text to a datastore, `limit` entries at most. Returns how many.
int64_t store_document(Model& model, const std::string& path, std::span<const uint8_t> bytes, int64_t limit,
                       DatastoreWriter& writer, const std::function<void(double share)>& progress = {});

/// Reads the first stored text again, from what the datastore holds of it, and throws Error "[datastore] FOLDER: ..."
/// where the keys are not the model's hidden states: fingerprints see weights alone, not a window or a memory that was
/// set otherwise, nor a file that was changed. Four times `context` entries at most are compared.
void check_keys(Model& model, const Datastore& store);

}  // namespace kinfolk
