// Text from a model, streamed, with a named policy at a limit.
#pragma once
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "kinfolk/eval/sampler.h"
#include "kinfolk/eval/session.h"
#include "kinfolk/nn/model.h"

namespace kinfolk {

struct GenerateOptions {
  SamplerOptions sampler;
  int64_t tokens = 256;           ///< new bytes; -1: without end
  std::vector<std::string> stop;  ///< generation ends before the first of these would appear
  bool read_last = false;         ///< the last byte is read, too, so that the session can go on
  SessionOptions session;         ///< memory limit, and what happens there; of a session that is made here
  /// After each chunk of the prompt, with the share that was read; false: end there.
  std::function<bool(double share)> reading;
};

struct Generated {
  std::string text;            ///< what was added to the prompt; of an endless text that `out` receives, the end
  std::string ended;           ///< "tokens", "stop string", "limit of N tokens" or "asked" (a callback returned false)
  std::string policy;          ///< what the member keeps, and does at its limit, in words
  int64_t prompt_tokens = 0;   ///< 1 for an empty prompt: the newline
  int64_t prompt_read = 0;     ///< fewer where the limit forgets its beginning, or reading was asked to end
  int64_t prompt_skipped = 0;  ///< at its beginning, as Session::skip counts them
  int64_t tokens = 0, refeeds = 0;
  int64_t state_bytes = 0, largest_state = 0, most_bytes = -1;  ///< Session::bytes at the end, and at most; its bound
  double prompt_seconds = 0, decode_seconds = 0;
};

struct Piece {
  int64_t token;
  double log_probability;
  std::string_view text;  ///< whole characters only: a character leaves with its last byte
};

/// Refuses options that make no sense, whatever the model.
void check_generate(const GenerateOptions& options);

/// An empty prompt starts from a newline. Throws Error when not even one token fits into the memory limit, UsageError
/// when the prompt does not fit and it is to stop at the limit.
Generated generate(Model& model, const std::string& prompt, const GenerateOptions& options,
                   const std::function<bool(const Piece&)>& out = {});
/// Goes on from what the session has read, then the prompt, which may be empty. With read_last the session has read all
/// of the text afterwards. (A stop string and what stood behind it is read although it is not let out.) Then texts do
/// not depend on how they are split into calls: draws are counted by the session's position, and recent bytes are the
/// session's. Where it is to stop at the limit, the text ends when the session can read no more; a call that begins
/// there writes nothing. Throws Error for scores that are no numbers.
Generated generate(Session& session, const std::string& prompt, const GenerateOptions& options,
                   const std::function<bool(const Piece&)>& out = {});

/// The longest prefix that does not end inside a UTF-8 character (invalid bytes count as characters).
size_t whole_characters(std::string_view bytes);

}  // namespace kinfolk
