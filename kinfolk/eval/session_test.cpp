#include "kinfolk/eval/session.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <set>
#include <sstream>

#include "kinfolk/core/errors.h"
#include "kinfolk/core/safetensors.h"
#include "kinfolk/nn/testing.h"

namespace kinfolk {
namespace {

constexpr int64_t kLimited = 40;  // positions of members whose positions end

/// A recipe with windows and segments of a few tokens, as it is tested.
std::shared_ptr<Model> small(const std::string& name, uint64_t seed = 1, at::ScalarType type = at::kFloat) {
  Recipe recipe = at_test(load_recipe(name));
  if (Value* let = recipe.tree.find("let"))
    for (auto& [key, value] : *let->as<Value::Table>())
      if (const auto* number = value.as<int64_t>(); number && *number > 6) value = Value(int64_t{6});
  Size size = tiny_size();
  size.width = 16, size.heads = 2, size.feed = 16, size.context = kLimited;
  const auto model = Model::make(recipe, size, seed, at::TensorOptions().dtype(type));
  model->eval();
  return model;
}

Tensor tokens_of(int64_t lanes, int64_t length, uint64_t seed = 5) {
  return at::randint(29, {lanes, length}, at::detail::createCPUGenerator(seed), at::kLong);
}

struct TemporaryFile {
  std::string path;
  explicit TemporaryFile(const std::string& name)
      : path((std::filesystem::path(::testing::TempDir()) / ("kinfolk_session_" + name)).string()) {}
  ~TemporaryFile() { std::filesystem::remove(path); }
};

/// Throws Error whose message holds all of these.
void expect_error(const std::function<void()>& f, const std::vector<std::string>& words) {
  try {
    f();
    ADD_FAILURE() << "no error";
  } catch (const Error& error) {
    for (const auto& word : words) EXPECT_NE(std::string(error.what()).find(word), std::string::npos) << error.what();
  }
}

class EveryMember : public ::testing::TestWithParam<std::string> {
 protected:
  std::shared_ptr<Model> model_ = small(GetParam());
};

// A18: saved, loaded by a model that was built anew, and continued bit for bit.
TEST_P(EveryMember, ASavedSessionGoesOnBitForBit) {
  const TemporaryFile file("saved_" + GetParam());
  const Tensor tokens = tokens_of(2, 30);
  Session session(*model_, {.lanes = 2, .chunk = 7});
  const Tensor scores = session.feed(tokens.narrow(1, 0, 20));
  session.save(file.path);
  const auto again = small(GetParam());
  Session loaded = Session::load(*again, file.path, {.chunk = 7});
  EXPECT_EQ(loaded.lanes(), 2);
  EXPECT_EQ(loaded.position(), 20);
  EXPECT_TRUE(loaded.scores().equal(scores));
  Session copy = session;  // goes on by itself
  for (int64_t t = 20; t < 30; t += 2) {
    const Tensor piece = tokens.narrow(1, t, 2), want = session.feed(piece);
    EXPECT_TRUE(loaded.feed(piece).equal(want)) << t;
    EXPECT_TRUE(copy.feed(piece).equal(want)) << t;
  }
}

TEST_P(EveryMember, ASessionOfAnotherModelIsRefused) {
  const TemporaryFile file("other_" + GetParam());
  Session session(*model_);
  session.feed(tokens_of(1, 4));
  session.save(file.path);
  const auto other = small(GetParam(), 2);
  expect_error([&] { Session::load(*other, file.path); }, {"[session]", "fingerprint", GetParam()});
}

std::set<std::string> words_of(const std::string& text) {
  std::istringstream in(text);
  return {std::istream_iterator<std::string>(in), {}};
}

/// Those that keep every key, or enough of them here.
const std::set<std::string> kAnywhere = words_of(
    "alibi bigbird da dilated_window gau gpt gpt_per_layer image_2d inverse_leaky_rerope kerple key_norm knn_lm "
    "local_2d log_n nope qk_bias reformer_stream reversible rope rope_mixed_base rope_ntk rope_ntk_dynamic rope_pi "
    "shaw sparse_strided t5_bias universal vanilla_decoder window_global xpos yarn");
/// Those whose segments keep the tokens from a segment's beginning on.
const std::set<std::string> kWithinSegments = words_of("compressive spalm transformer_xl");
/// Those that can until keys were dropped.
const std::set<std::string> kWhileNothingIsDropped = words_of(
    "adaptive_span block_local blockwise dynamic_span hwfa hwfa_rerope image_1d leaky_rerope rerope routing_stream "
    "sparse_fixed window");

bool must_go_back(const std::string& name, int64_t read, int64_t back) {
  return kAnywhere.count(name) || (kWithinSegments.count(name) && read - back <= 2) ||
         (kWhileNothingIsDropped.count(name) && read <= 4);
}

// Back to an earlier position: as if no more had been read, or a sentence that says why not.
TEST_P(EveryMember, GoesBackOrSaysWhyNot) {
  const auto exact = small(GetParam(), 1, at::kDouble);
  const Tensor tokens = tokens_of(2, 30), other = tokens_of(2, 8, 6);
  for (const auto& [read, back] : {std::pair<int64_t, int64_t>{4, 2}, {20, 18}, {20, 5}, {20, 0}, {20, 20}}) {
    Session session(*exact, {.lanes = 2});
    session.feed(tokens.narrow(1, 0, read));
    const Session before = session;
    Session fresh(*exact, {.lanes = 2});
    if (back > 0) fresh.feed(tokens.narrow(1, 0, back));
    try {
      session.truncate(back);
    } catch (const Error& error) {
      const std::string what = error.what(), mark = "cannot: ", end = " (a copy";
      EXPECT_NE(what.find("[session.truncate]"), std::string::npos) << what;
      ASSERT_NE(what.find(mark), std::string::npos) << what;
      ASSERT_NE(what.find(end), std::string::npos) << what;
      EXPECT_GT(what.find(end), what.find(mark) + mark.size() + 10) << what;  // a reason of some words between them
      EXPECT_FALSE(must_go_back(GetParam(), read, back)) << read << " to " << back << ": " << what;
      EXPECT_EQ(session.position(), read);
      EXPECT_LT(back, read);
      EXPECT_GT(back, 0);
      Session same = before;
      EXPECT_TRUE(session.feed(other).equal(same.feed(other)));
      continue;
    }
    EXPECT_EQ(session.position(0), back);
    EXPECT_EQ(session.position(1), back);
    EXPECT_LE(difference(session.feed(other), fresh.feed(other)), 1e-12) << read << " to " << back;
  }
}

TEST_P(EveryMember, LanesGoBackAndStartAnewAlone) {
  const auto exact = small(GetParam(), 1, at::kDouble);
  const Tensor tokens = tokens_of(2, 20), more = tokens_of(2, 6, 7);
  Session session(*exact, {.lanes = 2});
  session.feed(tokens);
  Session first(*exact), second(*exact);
  first.feed(tokens.narrow(0, 0, 1));
  session.reset(1);
  EXPECT_EQ(session.position(0), 20);
  EXPECT_EQ(session.position(1), 0);
  const Tensor out = session.feed(more);
  EXPECT_LE(difference(out.narrow(0, 0, 1), first.feed(more.narrow(0, 0, 1))), 1e-12);
  EXPECT_LE(difference(out.narrow(0, 1, 1), second.feed(more.narrow(0, 1, 1))), 1e-12);
  // Lane 1 alone goes back within what it has; where it cannot, nothing changes.
  const Tensor rest = tokens_of(2, 3, 8);
  Session fresh(*exact);
  fresh.feed(more.narrow(0, 1, 1).narrow(1, 0, 4));
  try {
    session.truncate(4, 1);
  } catch (const Error&) {
    EXPECT_EQ(session.position(1), 6);
    return;
  }
  const Tensor after = session.feed(rest);
  EXPECT_LE(difference(after.narrow(0, 0, 1), first.feed(rest.narrow(0, 0, 1))), 1e-12);
  EXPECT_LE(difference(after.narrow(0, 1, 1), fresh.feed(rest.narrow(0, 1, 1))), 1e-12);
}

/// Feeds in uneven pieces and checks the bytes after every call.
int64_t stream(Session& session, int64_t length, int64_t limit) {
  int64_t most = session.bytes();
  for (int64_t at = 0, n = 1; at < length; at += n, n = n % 9 + 1) {
    if (session.room() < n) break;
    session.feed(tokens_of(session.lanes(), n, static_cast<uint64_t>(at + 1)));
    most = std::max(most, session.bytes());
    EXPECT_LE(session.bytes(), limit) << "after " << at + n;
    EXPECT_LE(session.state().bytes(), limit);
    EXPECT_LE(session.bytes(), session.most_bytes());
  }
  return most;
}

// The limit holds for the memory itself, not only for what the tensors show.
TEST_P(EveryMember, TheMemoryLimitIsKeptAtEveryCall) {
  const bool grows = model_->most_bytes(1) < 0;
  if (grows && model_->most_bytes(1, 1) < 0) {  // nothing can be left out: refused
    expect_error([&] { Session(*model_, {.memory_limit = 1 << 20}); }, {"[memory_limit]", "grows with the text"});
    return;
  }
  for (const std::string policy : {"drop", "refeed", "stop"}) {
    for (const int64_t lanes : {1, 2}) {
      SCOPED_TRACE(text(policy, ", ", lanes, " lanes"));
      const int64_t limit = grows ? model_->most_bytes(lanes, 12) + lanes * kLimited * 8 + 100
                                  : Session(*model_, {.lanes = lanes, .at_limit = policy}).most_bytes();
      Session session(*model_, {.lanes = lanes, .memory_limit = limit, .at_limit = policy, .chunk = 5});
      EXPECT_LE(session.most_bytes(), limit);
      const int64_t most = stream(session, 150, limit);
      EXPECT_GE(2 * most, limit);  // most of it is used
      expect_error([&] { Session(*model_, {.lanes = lanes, .memory_limit = 16, .at_limit = policy}); },
                   {"[memory_limit]", lanes == 1 ? "found 16 bytes" : "found 16 bytes, 8 a lane"});
    }
  }
}

// A23, A13: what is kept at the limit does not depend on how the tokens come.
TEST_P(EveryMember, TheLimitMeansTheSameHoweverItIsFed) {
  const auto exact = small(GetParam(), 1, at::kDouble);
  const Tensor tokens = tokens_of(1, 60);
  const int64_t most = exact->most_bytes(1), least = exact->most_bytes(1, 11);
  const bool free = most < 0 && least < 0;  // a limit is refused: no limit
  for (const std::string policy : {"drop", "refeed"}) {
    const int64_t limit = free ? 0 : most < 0 ? least + kLimited * 8 : most + kLimited * 8;
    std::vector<Tensor> out;
    for (const int64_t chunk : {60, 7, 1}) {
      Session session(*exact, {.memory_limit = limit, .at_limit = policy, .chunk = chunk});
      std::vector<Tensor> parts;
      session.feed(tokens, [&](const Tensor& scores, int64_t) { return parts.push_back(scores), true; });
      out.push_back(at::cat(parts, 1));
    }
    EXPECT_LE(difference(out[1], out[0]), 1e-10) << policy;
    EXPECT_LE(difference(out[2], out[0]), 1e-10) << policy;
  }
}

std::vector<std::string> members(bool streaming) {
  std::vector<std::string> out;
  for (const auto& name : recipe_names())
    if (Model::make(load_recipe(name), tiny_size(), 1, at::TensorOptions().device(at::kMeta))->traits().streams ==
        streaming) {
      out.push_back(name);
    }
  return out;
}

INSTANTIATE_TEST_SUITE_P(Session, EveryMember, ::testing::ValuesIn(members(true)),
                         [](const auto& info) { return info.param; });

TEST(Session, ThoseThatMustGoBackAreMembers) {
  const auto all = members(true);
  for (const auto* names : {&kAnywhere, &kWithinSegments, &kWhileNothingIsDropped})
    for (const auto& name : *names) EXPECT_NE(std::find(all.begin(), all.end(), name), all.end()) << name;
}

TEST(Session, RefusesWhatDoesNotStreamWithTheReason) {
  EXPECT_GT(members(false).size(), 2U);
  for (const auto& name : members(false)) {
    const auto model = small(name);
    expect_error([&] { Session session(*model); }, {"[session]", model->traits().why_not});
    EXPECT_GT(model->traits().why_not.size(), 10U) << name;
  }
}

// At the limit a member that keeps all keys reads as one whose pattern is cut by a window.
TEST(Session, DroppedKeysAreAWindow) {
  const auto model = small("rope", 1, at::kDouble);
  Session limited(*model, {.memory_limit = model->most_bytes(1, 9)});
  Recipe recipe = load_recipe("rope");
  override_recipe(recipe, "layers.0.branches.0.pattern=causal & window(9)");
  const auto window = Model::make(recipe, model->size(), 1, at::TensorOptions().dtype(at::kDouble));
  window->eval();
  Session other(*window);
  const Tensor tokens = tokens_of(1, 50);
  EXPECT_LE(difference(limited.feed(tokens), other.feed(tokens)), 1e-12);
  EXPECT_NE(limited.policy().find("the newest 9 keys are kept"), std::string::npos) << limited.policy();
  // A window of the newest 9 goes back as long as it has what the position before needs: not at all, once it is full.
  expect_error([&] { limited.truncate(45); }, {"45", "were dropped"});
}

TEST(Session, TheLimitIsUsedToTheLastKey) {
  const auto model = small("rope");
  const int64_t limit = model->most_bytes(2, 30);
  const auto kept = [&](int64_t bytes) { return Session(*model, {.lanes = 2, .memory_limit = bytes}).policy(); };
  EXPECT_NE(kept(limit).find("newest 30 keys"), std::string::npos) << kept(limit);
  EXPECT_NE(kept(limit - 1).find("newest 29 keys"), std::string::npos) << kept(limit - 1);
}

// A23: a prompt longer than the window, in one call and in several, against a query with the newest keys alone.
TEST(Session, APromptLongerThanTheWindow) {
  const auto model = small("window", 1, at::kDouble);
  const Tensor tokens = tokens_of(1, 31);
  std::vector<Tensor> out;
  for (const int64_t chunk : {31, 5, 1}) {
    Session session(*model, {.chunk = chunk});
    out.push_back(session.feed(tokens));
  }
  const Tensor whole = model->score({tokens, {}}).select(1, -1);
  for (const Tensor& scores : out) EXPECT_LE(difference(scores, whole), 1e-12);
}

// A12: nothing read and an empty memory are the same; positions go on across calls and files.
TEST(Session, SaysWhatHappensAtBothEnds) {
  const auto model = small("gpt");  // whose positions end
  const std::string policy = Session(*model, {.memory_limit = Session(*model).bytes() + 6000}).policy();
  EXPECT_NE(policy.find("keys are kept and older ones dropped; positions end at 40 tokens"), std::string::npos)
      << policy;
}

TEST(Session, PlacesOfTokensGoWithAFreshState) {
  const auto model = small("knn_lm");
  SessionOptions options;
  options.memory_limit = 20000, options.at_limit = "refeed";
  Session session(*model, options);
  ASSERT_LT(session.capacity(), 4000);
  const int64_t length = 2 * session.capacity();
  const Tensor tokens = at::randint(model->size().vocabulary, {1, length}, at::kLong);
  session.feed(tokens, {}, {{"place", at::arange(length, at::kLong).unsqueeze(0)}});
  EXPECT_GT(session.refeeds(), 0);
  EXPECT_EQ(session.position(), length);
  EXPECT_THROW(session.feed(tokens, {}, {{"document", at::zeros({1, length}, at::kLong)}}), Error);
}

TEST(Session, AnEmptyFeedChangesNothing) {
  for (const char* name : {"rope", "transformer_xl", "deltanet"}) {
    const auto model = small(name);
    Session session(*model), other(*model);
    session.feed(at::zeros({1, 0}, at::kLong));
    EXPECT_EQ(session.position(), 0);
    EXPECT_FALSE(session.scores().defined());
    const Tensor tokens = tokens_of(1, 9);
    EXPECT_TRUE(session.feed(tokens).equal(other.feed(tokens))) << name;
    const Tensor before = session.scores();
    EXPECT_TRUE(session.feed(at::zeros({1, 0}, at::kLong)).equal(before)) << name;
  }
}

TEST(Session, LanesAreSelectedAndPaddedTokensAreNotRead) {
  const auto model = small("window", 1, at::kDouble);
  Session session(*model, {.lanes = 2});
  const Tensor tokens = tokens_of(2, 12);
  Tensor valid = at::ones({2, 12}, at::kBool);
  valid[1].narrow(0, 8, 4).fill_(false);
  const Tensor scores = session.feed(tokens, {}, {{"valid", valid}});
  EXPECT_EQ(session.position(0), 12);
  EXPECT_EQ(session.position(1), 8);
  Session alone(*model);
  EXPECT_LE(difference(scores.narrow(0, 1, 1), alone.feed(tokens.narrow(0, 1, 1).narrow(1, 0, 8))), 1e-12);
  session.select(at::tensor({1, 1, 0}, at::kLong));
  EXPECT_EQ(session.lanes(), 3);
  EXPECT_EQ(session.position(1), 8);
  const Tensor more = tokens_of(1, 3, 9);
  EXPECT_LE(difference(session.feed(more.expand({3, 3})).narrow(0, 1, 1), alone.feed(more)), 1e-12);
}

TEST(Session, LanesThatStartAnewInTurnDoNotFillTheStateWithEmptyKeys) {
  for (const char* name : {"rope", "rerope", "alibi", "reformer_stream", "routing_stream"}) {
    const auto model = small(name, 1, at::kDouble);
    Session session(*model, {.lanes = 2}), alone(*model);
    int64_t most = 0;
    for (int64_t turn = 0; turn < 20; ++turn) {
      session.reset(turn % 2);
      session.feed(tokens_of(2, 8, 7 + turn));
      if (turn == 3) most = session.bytes();
    }
    EXPECT_LE(session.bytes(), most) << name;
    const Tensor last = tokens_of(2, 8, 26).narrow(0, 1, 1);  // what lane 1 read since it began anew
    EXPECT_LE(difference(session.scores().narrow(0, 1, 1), alone.feed(last)), 1e-12) << name;
  }
}

// A24: a bfloat16 cache at the limit.
TEST(Session, HalfPrecisionStaysWithinTheLimit) {
  for (const char* name : {"rope", "rerope", "window", "transformer_xl", "deltanet"}) {
    const auto model = small(name, 1, at::kBFloat16);
    const int64_t limit = model->most_bytes(1) < 0 ? model->most_bytes(1, 12) : model->most_bytes(1);
    Session session(*model, {.memory_limit = limit});
    stream(session, 80, limit);
    EXPECT_TRUE(session.scores().isfinite().all().item<bool>()) << name;
  }
}

// A14: what was read is not read again.
TEST(Session, AStepDoesOneTokensWork) {
  const auto model = small("transformer_xl");
  Session session(*model);
  session.feed(tokens_of(1, 20));
  session.step(at::tensor({3}, at::kLong));
  EXPECT_EQ(session.position(), 21);
  EXPECT_EQ(session.state().tensors.at("seen").item<int64_t>(), 21);
}

TEST(Session, ForeignFilesAreRefused) {
  const auto model = small("rope");
  Session session(*model);
  session.feed(tokens_of(1, 30));
  const TemporaryFile file("foreign");
  session.save(file.path);
  const TensorFile whole = read_tensors(file.path);
  const auto refused = [&](const std::function<void(TensorFile&)>& change, const std::vector<std::string>& words) {
    TensorFile changed = whole;
    change(changed);
    changed.metadata["checksum"] = session_checksum(changed);
    write_tensors(file.path, changed);
    expect_error([&] { Session::load(*model, file.path); }, words);
  };
  refused([](auto& f) { f.metadata.clear(); }, {"another program"});
  refused([](auto& f) { f.metadata["format"] = "kinfolk-session-9"; }, {"kinfolk-session-9"});
  refused([](auto& f) { f.metadata["member"] += "x"; }, {"as it is set here"});
  refused([](auto& f) { f.tensors.erase("state/seen"); }, {"state/seen", "none of this name"});
  refused([](auto& f) { f.tensors["state/more"] = at::zeros({1}); }, {"state/more"});
  refused([](auto& f) { f.tensors["state/seen"] = at::zeros({1}); }, {"state/seen"});
  refused([](auto& f) { f.tensors["dropped"] = at::zeros({3}, at::kLong); }, {"counts of each lane"});
  expect_error([&] { Session::load(*small("window"), file.path); }, {"[session]", "expected"});
  write_tensors(file.path, whole);
  const auto cut = small("rope");
  expect_error([&] { Session::load(*cut, file.path, {.memory_limit = cut->most_bytes(1, 3)}); }, {"memory limit"});
}

TEST(Session, RefusesWhatMakesNoSense) {
  const auto model = small("rope");
  EXPECT_THROW(Session(*model, {.lanes = 0}), UsageError);
  EXPECT_THROW(Session(*model, {.chunk = 0}), UsageError);
  EXPECT_THROW(Session(*model, {.at_limit = "go"}), UsageError);
  Session session(*model);
  expect_error([&] { session.feed(tokens_of(2, 3)); }, {"[session.feed]", "[2, 3]"});
  expect_error([&] { session.feed(at::full({1, 2}, 99, at::kLong)); }, {"99"});
  expect_error([&] { session.truncate(1); }, {"from 0 to 0"});
  expect_error([&] { session.reset(4); }, {"lane"});
  expect_error([&] { session.position(4); }, {"lane"});
}

}  // namespace
}  // namespace kinfolk
