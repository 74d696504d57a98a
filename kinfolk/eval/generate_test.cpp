#include "kinfolk/eval/generate.h"

#include <gtest/gtest.h>

#include "kinfolk/core/errors.h"
#include "kinfolk/nn/testing.h"

namespace kinfolk {
namespace {

std::shared_ptr<Model> bytes_model(const std::string& name, int64_t context = 96, uint64_t seed = 3) {
  Recipe recipe = load_recipe(name);
  if (Value* let = recipe.tree.find("let"))
    for (auto& [key, value] : *let->as<Value::Table>())
      if (value.as<int64_t>()) value = Value(int64_t{16});
  Size size = tiny_size();
  size.vocabulary = 256, size.context = context;
  return Model::make(recipe, size, seed);
}

/// Every next byte is equally likely.
void make_uniform(Model& model) {
  at::NoGradGuard no_grad;
  for (auto& parameter : model.parameters()) parameter.zero_();
}

TEST(WholeCharacters, EndsBeforeAnUnfinishedCharacter) {
  const std::pair<std::string, size_t> cases[] = {{"", 0},
                                                  {"a", 1},
                                                  {"\xC3", 0},
                                                  {"\xC3\xA9", 2},
                                                  {"a\xC3", 1},
                                                  {"\xE6", 0},
                                                  {"\xE6\xAD", 0},
                                                  {"\xE6\xAD\xA3", 3},
                                                  {"\xF0\x9F\x98", 0},
                                                  {"\xF0\x9F\x98\x80", 4},
                                                  {"a\xF0\x9F", 1},
                                                  // Not UTF-8: let out, never held for ever.
                                                  {"\x80", 1},
                                                  {"\x80\x80\x80", 3},
                                                  {"\x80\x80\x80\x80\x80", 5},
                                                  {"\xFF", 1},
                                                  {"\xC3\xA9\x80", 3},
                                                  {"\xE6\xAD\xA3\xE6", 3}};
  for (const auto& [bytes, whole] : cases) EXPECT_EQ(whole_characters(bytes), whole) << testing::PrintToString(bytes);
}

TEST(Generate, SameSeedSameText) {
  const auto model = bytes_model("rope");
  GenerateOptions options;
  options.tokens = 40;
  const Generated first = generate(*model, "It was", options);
  EXPECT_EQ(first.text.size(), 40u);
  EXPECT_EQ(first.tokens, 40);
  EXPECT_EQ(first.prompt_tokens, 6);
  EXPECT_EQ(first.ended, "tokens");
  EXPECT_EQ(generate(*model, "It was", options).text, first.text);
  options.sampler.seed = 2;
  EXPECT_NE(generate(*model, "It was", options).text, first.text);
}

TEST(Generate, PromptInPiecesOfAnySizeIsTheSamePrompt) {
  for (const char* name : {"rope", "transformer_xl", "deltanet"}) {
    const auto model = bytes_model(name);
    GenerateOptions options;
    options.tokens = 20, options.sampler.temperature = 0;
    const std::string prompt(50, 'q');
    const std::string whole = generate(*model, prompt, options).text;
    options.session.chunk = 7;
    EXPECT_EQ(generate(*model, prompt, options).text, whole) << name;
  }
}

TEST(Generate, PiecesAreWholeCharactersAndMakeTheText) {
  const auto model = bytes_model("rope");
  make_uniform(*model);
  GenerateOptions options;
  options.tokens = 400, options.sampler.temperature = 1;
  std::string joined, drawn;
  int64_t tokens = 0;
  const Generated result = generate(*model, "", options, [&](const Piece& piece) {
    tokens += piece.token >= 0;
    joined += piece.text;
    if (piece.token >= 0) {
      EXPECT_NEAR(piece.log_probability, -std::log(256.0), 1e-5);
      drawn += static_cast<char>(piece.token);
      EXPECT_EQ(joined.size(), whole_characters(drawn));
    }
    return true;
  });
  EXPECT_EQ(joined, result.text);
  EXPECT_EQ(tokens, 400);
}

TEST(Generate, StopStringsAreNeverLetOutNotEvenInPart) {
  const auto model = bytes_model("rope");
  make_uniform(*model);
  GenerateOptions options;
  options.tokens = 300, options.sampler.temperature = 1;
  const std::string text = generate(*model, "", options).text;
  for (const size_t length : {size_t{1}, size_t{2}, size_t{5}}) {
    const std::string stop = text.substr(200, length);
    const std::string before = text.substr(0, text.find(stop));
    options.stop = {"no such text", stop};
    std::string joined;
    const Generated result = generate(*model, "", options, [&](const Piece& piece) {
      joined += piece.text;
      EXPECT_EQ(before.compare(0, joined.size(), joined), 0);
      return true;
    });
    EXPECT_EQ(result.ended, "stop string");
    EXPECT_EQ(result.text, before);
    EXPECT_EQ(joined, before);
  }
  // A beginning of the stop string that never becomes it is let out in the end.
  options.tokens = 10;
  options.stop = {text.substr(8, 2) + "never"};
  std::string joined;
  generate(*model, "", options, [&](const Piece& piece) { return joined += piece.text, true; });
  EXPECT_EQ(joined, text.substr(0, 10));
}

TEST(Generate, CallbackEndsIt) {
  const auto model = bytes_model("rope");
  GenerateOptions options;
  options.tokens = -1;
  int64_t calls = 0;
  const Generated result = generate(*model, "a", options, [&](const Piece&) { return ++calls < 5; });
  EXPECT_EQ(result.ended, "asked");
  EXPECT_EQ(result.tokens, 5);
  options.reading = [](double) { return false; };
  EXPECT_EQ(generate(*model, "a", options).ended, "asked");
}

TEST(Generate, EndlessTextIsForgotten) {
  const auto model = bytes_model("lstm");
  GenerateOptions options;
  options.tokens = -1;
  int64_t calls = 0, let_out = 0;
  const Generated result = generate(*model, "a", options, [&](const Piece& piece) {
    let_out += static_cast<int64_t>(piece.text.size());
    return ++calls < 6000;
  });
  EXPECT_GE(let_out, 6000 - 3);
  EXPECT_LT(result.text.size(), 5000u);
}

TEST(Generate, RefeedIsAFreshStateOfTheNewestHalf) {
  const auto model = bytes_model("gpt", 8);
  GenerateOptions options;
  options.tokens = 10, options.sampler.temperature = 0;
  const Generated result = generate(*model, "a", options);
  EXPECT_EQ(result.ended, "tokens");
  EXPECT_GE(result.refeeds, 1);
  // "a" and 7 bytes fill the 8 positions; the next byte is seen after the newest 4 of them.
  std::vector<int64_t> seen;
  for (const unsigned char c : "a" + result.text) seen.push_back(c);
  const Batch batch{at::tensor(std::vector<int64_t>(seen.begin() + 4, seen.begin() + 9)).unsqueeze(0), {}};
  EXPECT_EQ(model->score(batch).select(1, -1).argmax().item<int64_t>(), seen[9]);
  options.session.at_limit = "stop";
  const Generated stopped = generate(*model, "a", options);
  EXPECT_EQ(stopped.ended, "limit of 8 tokens");
  EXPECT_EQ(stopped.text, result.text.substr(0, 7));  // "a" and 7 bytes
}

TEST(Generate, PromptLongerThanWhatFits) {
  const auto model = bytes_model("gpt", 8);
  GenerateOptions options;
  options.tokens = 3, options.sampler.temperature = 0;
  const Generated result = generate(*model, "abcdefghijkl", options);
  EXPECT_EQ(result.prompt_tokens, 12);
  EXPECT_EQ(result.prompt_skipped, 4);  // at the 9th byte a fresh state is made from the newest 4
  EXPECT_EQ(result.prompt_read, 8);
  EXPECT_EQ(result.text, generate(*model, "efghijkl", options).text);
  options.session.at_limit = "stop";
  EXPECT_THROW(generate(*model, "abcdefghijkl", options), UsageError);
  EXPECT_EQ(generate(*model, "abcdefgh", options).ended, "limit of 8 tokens");
}

// What is read does not depend on how the prompt is split into calls, wherever the limit falls.
TEST(Generate, APromptAtTheLimitInOneCallAndInMany) {
  const auto positions = bytes_model("gpt", 8), keys = bytes_model("rope");
  std::string prompt;
  for (int i = 0; i < 60; ++i) prompt += static_cast<char>('a' + i * i % 23);
  for (const auto& [model, limit] : {std::pair(positions, int64_t{0}), {keys, keys->most_bytes(1, 11) + 11 * 8}}) {
    GenerateOptions options;
    options.tokens = 0, options.read_last = true, options.sampler.temperature = 0;
    options.session.memory_limit = limit, options.session.at_limit = "refeed";
    for (const size_t length : {3, 8, 9, 11, 12, 16, 17, 23, 40, 60}) {
      for (const size_t piece : {1, 5, 7, 19}) {
        SCOPED_TRACE(text(length, " bytes in pieces of ", piece));
        Session one(*model, options.session), many(*model, options.session);
        const Generated whole = generate(one, prompt.substr(0, length), options);
        int64_t read = 0;
        for (size_t at = 0; at < length; at += piece) {
          read = generate(many, prompt.substr(at, std::min(piece, length - at)), options).tokens;
        }
        EXPECT_EQ(one.position(), static_cast<int64_t>(length));
        EXPECT_EQ(many.position(), static_cast<int64_t>(length));
        EXPECT_EQ(one.room(), many.room());
        EXPECT_EQ(one.refeeds(), many.refeeds());
        EXPECT_EQ(whole.refeeds, one.refeeds());
        EXPECT_EQ(whole.prompt_skipped + whole.prompt_read, static_cast<int64_t>(length));
        EXPECT_LE(whole.prompt_read, one.capacity());
        EXPECT_EQ(one.recent(), many.recent());
        EXPECT_EQ(read, 0);
        EXPECT_LE(difference(one.scores(), many.scores()), 1e-4);
      }
    }
  }
}

// Draws and recent bytes go on from call to call.
TEST(Generate, TextInOneCallAndInMany) {
  const auto model = bytes_model("rope");
  make_uniform(*model);
  GenerateOptions options;
  options.sampler.temperature = 1, options.sampler.repetition = 1.5, options.read_last = true, options.tokens = 30;
  const std::string whole = generate(*model, "It was", options).text;
  options.tokens = 10;
  Session session(*model);
  std::string joined;
  for (const char* prompt : {"It was", "", ""}) joined += generate(session, prompt, options).text;
  EXPECT_EQ(joined, whole);
  options.sampler.repetition_window = 5000;
  EXPECT_EQ(generate(session, "", options).tokens, 10);  // all that was read is known
  Session longer(*model);
  longer.feed(at::zeros({1, 3000}, at::kLong));
  EXPECT_THROW(generate(longer, "", options), UsageError);
}

TEST(Generate, StopsAtTheLimitOnceAndForAll) {
  const auto model = bytes_model("gpt", 8);
  GenerateOptions options;
  options.tokens = 5, options.read_last = true, options.session.at_limit = "stop";
  const std::string whole = [&] {
    GenerateOptions more = options;
    more.tokens = 100;
    return generate(*model, "abc", more).text;
  }();
  EXPECT_EQ(whole.size(), 5u);
  options.tokens = 3;
  Session session(*model, options.session);
  std::string joined;
  const std::pair<int64_t, std::string> ends[] = {{3, "tokens"}, {2, "limit of 8 tokens"}, {0, "limit of 8 tokens"}};
  for (const auto& [tokens, ended] : ends) {
    const Generated result = generate(session, joined.empty() ? "abc" : "", options);
    EXPECT_EQ(result.tokens, tokens);
    EXPECT_EQ(result.ended, ended);
    joined += result.text;
    EXPECT_EQ(session.position(), static_cast<int64_t>(3 + joined.size()));
  }
  EXPECT_EQ(joined, whole);
}

TEST(Generate, WhatAnInterruptLeavesIsWrittenIfItIsRead) {
  const auto model = bytes_model("rope");
  make_uniform(*model);
  GenerateOptions options;
  options.tokens = 300, options.sampler.temperature = 1, options.read_last = true;
  for (int64_t end = 1; end < 60; ++end) {
    Session session(*model);
    std::string written;
    int64_t calls = 0;
    const Generated result = generate(session, "a", options, [&](const Piece& piece) {
      written += piece.text;
      return ++calls != end;
    });
    EXPECT_EQ(result.ended, "asked");
    EXPECT_EQ(static_cast<int64_t>(written.size()) + 1, session.position());
  }
}

TEST(Generate, SaysHowMuchOfAPromptWasRead) {
  const auto model = bytes_model("rope");
  GenerateOptions options;
  options.session.chunk = 10;
  int64_t calls = 0;
  options.reading = [&](double) { return ++calls < 3; };
  const Generated result = generate(*model, std::string(100, 'x'), options);
  EXPECT_EQ(result.ended, "asked");
  EXPECT_EQ(result.prompt_tokens, 100);
  EXPECT_EQ(result.prompt_skipped, 0);
  EXPECT_EQ(result.prompt_read, 30);
}

TEST(Generate, ScoresThatAreNoNumbersAreAnError) {
  const auto model = bytes_model("rope");
  {
    at::NoGradGuard no_grad;
    for (auto& parameter : model->parameters()) parameter.fill_(NAN);
  }
  for (const int64_t tokens : {0, 5}) {
    for (const double temperature : {0.0, 1.0}) {
      GenerateOptions options;
      options.tokens = tokens, options.sampler.temperature = temperature;
      try {
        generate(*model, "abc", options);
        ADD_FAILURE() << "no error";
      } catch (const UsageError& error) {
        ADD_FAILURE() << error.what();
      } catch (const Error& error) {
        EXPECT_NE(std::string(error.what()).find("found NaN"), std::string::npos) << error.what();
      }
    }
  }
}

TEST(Generate, MemoryLimitIsKeptAtEveryStepByEveryMember) {
  for (const auto& name : recipe_names()) {
    SCOPED_TRACE(name);
    const auto model = bytes_model(name);
    if (!model->traits().streams) continue;
    const int64_t start = model->start(1).bytes();
    GenerateOptions options;
    options.tokens = 30, options.session.chunk = 5;
    const int64_t unbound = generate(*model, std::string(20, 'x'), options).largest_state;
    for (const int64_t limit : {start + 1, start + (unbound - start) / 7, start + (unbound - start) / 2, unbound}) {
      options.session.memory_limit = limit;
      Generated result;
      try {
        result = generate(*model, std::string(20, 'x'), options);
      } catch (const Error& error) {
        EXPECT_TRUE(std::string(error.what()).find("memory_limit") != std::string::npos) << error.what();
        continue;
      }
      EXPECT_EQ(result.tokens, 30);
      EXPECT_LE(result.largest_state, limit);
      EXPECT_GT(result.largest_state, 0);
    }
    EXPECT_LE(unbound, options.session.memory_limit);
    options.session.memory_limit = 1;
    EXPECT_THROW(generate(*model, "x", options), Error);
  }
}

TEST(Generate, ASessionGoesOnWhereTheTextEnded) {
  for (const char* name : {"rope", "window", "transformer_xl", "deltanet", "gpt"}) {
    const auto model = bytes_model(name);
    GenerateOptions options;
    options.sampler.temperature = 0, options.tokens = 30;
    const std::string whole = generate(*model, "It was", options).text;
    options.tokens = 12, options.read_last = true;
    Session session(*model);
    const Generated first = generate(session, "It was", options);
    EXPECT_EQ(session.position(), 18);
    options.tokens = 18;
    const Generated second = generate(session, "", options);
    EXPECT_EQ(second.prompt_tokens, 0);
    EXPECT_EQ(first.text + second.text, whole) << name;
    EXPECT_EQ(session.position(), 36);
  }
}

TEST(Generate, RefusesWhatMakesNoSense) {
  const auto model = bytes_model("rope");
  const auto refused = [&](const std::function<void(GenerateOptions&)>& change) {
    GenerateOptions options;
    change(options);
    EXPECT_THROW(generate(*model, "a", options), UsageError);
  };
  refused([](auto& o) { o.session.at_limit = "go"; });
  refused([](auto& o) { o.stop = {""}; });
  refused([](auto& o) { o.session.chunk = 0; });
  refused([](auto& o) { o.sampler.top_p = 0; });
  const auto small = tiny("rope");  // 29 bytes
  EXPECT_THROW(generate(*small, "z", {}), UsageError);
  GenerateOptions options;
  options.tokens = 5;
  EXPECT_EQ(generate(*small, "", options).text.size(), 5u);
}

}  // namespace
}  // namespace kinfolk
