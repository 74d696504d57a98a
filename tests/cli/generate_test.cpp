// Text from a run: prompts of any bytes (A51, A52), limits (A32), stop strings, memory, streams that close.
#include <cmath>
#include <nlohmann/json.hpp>

#include "kinfolk/core/safetensors.h"
#include "tests/cli/program.h"

namespace kinfolk {
namespace {

using nlohmann::json;

class Generation : public ProgramTest {
 protected:
  void SetUp() override { ASSERT_EQ(train("rope", "run").status, 0); }
  ProgramResult generate(const std::vector<std::string>& more, const std::string& input = "") const {
    std::vector<std::string> words = {"generate", "run", "-n", "12"};
    words.insert(words.end(), more.begin(), more.end());
    return run(words, input);
  }
};

TEST_F(Generation, PromptsOfAnyBytes) {
  for (const std::string prompt : {"\xE6\xAD", "\xC0\x80", "\xFF", "\x80", "\xF0\x9F\x98", "\xED\xA0\x80"}) {
    const ProgramResult given = generate({"--prompt", prompt});
    EXPECT_EQ(given.status, 0) << given.err;
    EXPECT_EQ(given.out.size(), 13u);
    EXPECT_TRUE(has(given.err, "prompt of " + std::to_string(prompt.size()) + " bytes")) << given.err;
  }
  write("prompt", "\xE6\xAD");
  const std::string given = generate({"--prompt", "\xE6\xAD"}).out;
  EXPECT_EQ(generate({"--prompt-file", "prompt"}).out, given);
  EXPECT_EQ(generate({"-"}, "\xE6\xAD").out, given);
  const std::string zeros("\0\0a\0", 4);
  const ProgramResult ran = generate({"-"}, zeros);
  EXPECT_EQ(ran.status, 0);
  EXPECT_TRUE(has(ran.err, "prompt of 4 bytes")) << ran.err;
}

TEST_F(Generation, AnEmptyPromptIsANewline) {
  const std::string newline = generate({"--prompt", "\n"}).out;
  EXPECT_EQ(generate({}).out, newline);
  EXPECT_EQ(generate({"--prompt", ""}).out, newline);
  EXPECT_EQ(generate({"-"}, "").out, newline);
  write("empty", "");
  EXPECT_EQ(generate({"--prompt-file", "empty"}).out, newline);
}

TEST_F(Generation, WrongUsage) {
  std::filesystem::create_directories(folder / "folder");
  const std::vector<std::pair<std::vector<std::string>, std::vector<std::string>>> cases = {
      {{"--prompt", "a", "-"}, {"one of", "several"}},
      {{"other"}, {"RUN -", "other"}},
      {{"--prompt-file", "nowhere"}, {"nowhere", "No such file"}},
      {{"--prompt-file", "folder"}, {"folder", "Is a directory"}},
      {{"--temperature", "-1"}, {"temperature", "-1"}},
      {{"--temperature", ""}, {"[--temperature]", "nothing"}},
      {{"--top-p", "0"}, {"top_p", "more than 0"}},
      {{"--seed", "-1"}, {"[--seed]"}},
      {{"--samples", "0"}, {"[--samples]", "at least 1"}},
      {{"--stop", ""}, {"stop"}},
      {{"--at-limit", "go"}, {"[--at-limit]", "drop, refeed, stop", "go"}},
      {{"--memory-limit", "0"}, {"[--memory-limit]", "at least 1"}},
      {{"--store", "book.txt"}, {"[--store]", "datastore"}},
      {{"--checkpoint", "bets"}, {"did you mean best?"}}};
  for (const auto& [words, parts] : cases) {
    SCOPED_TRACE(words[0]);
    expect_refusal(generate(words), 2, parts);
  }
  expect_refusal(run({"generate", "run", "-n", "-2"}), 2, {"[--tokens]", "-2"});
  expect_refusal(run({"generate", "run", "-n", "-1", "--samples", "2"}), 2, {"[--samples]"});
  expect_refusal(generate({"--memory-limit", "10"}), 1, {"memory_limit", "10"});
}

TEST_F(Generation, BeyondLearnedPositions) {
  ASSERT_EQ(train("gpt", "gpt").status, 0);
  const ProgramResult on = run({"generate", "gpt", "-n", "100"});
  EXPECT_EQ(on.status, 0) << on.err;
  EXPECT_EQ(on.out.size(), 101u);
  EXPECT_TRUE(has(on.err, "positions end at 32 tokens: then a fresh state is made from the newest half (5 times)"))
      << on.err;
  const ProgramResult stopped = run({"generate", "gpt", "-n", "100", "--at-limit", "stop"});
  EXPECT_EQ(stopped.status, 0);
  EXPECT_TRUE(has(stopped.err, "ended: limit of 32 tokens")) << stopped.err;
  const std::string prompt(300, 'a');
  const ProgramResult longer = run({"generate", "gpt", "-n", "5", "--prompt", prompt, "--temperature", "0"});
  EXPECT_EQ(longer.status, 0);
  EXPECT_TRUE(has(longer.err, "prompt of 300 bytes, of which the newest 28 were read")) << longer.err;
  EXPECT_EQ(run({"generate", "gpt", "-n", "5", "--prompt", prompt.substr(272), "--temperature", "0"}).out, longer.out);
  expect_refusal(run({"generate", "gpt", "-n", "5", "--prompt", prompt, "--at-limit", "stop"}), 2,
                 {"at most 32", "300"});
}

TEST_F(Generation, MemoryLimitSamplesAndJson) {
  const ProgramResult limited = run({"generate", "run", "-n", "60", "--memory-limit", "2k"});
  EXPECT_EQ(limited.status, 0) << limited.err;
  EXPECT_TRUE(has(limited.err, "at the memory limit the newest ")) << limited.err;
  for (const char* part : {"; weights ", ", scratch ", ", peak memory of the program "})
    EXPECT_TRUE(has(limited.err, part)) << limited.err;
  EXPECT_EQ(limited.out.size(), 61u);
  const ProgramResult anew = run({"generate", "run", "-n", "60", "--memory-limit", "2k", "--at-limit", "refeed"});
  EXPECT_TRUE(has(anew.err, "memory ends at ")) << anew.err;

  const ProgramResult two = generate({"--samples", "2", "--quiet"});
  EXPECT_EQ(two.out, generate({"--quiet"}).out + generate({"--seed", "2", "--quiet"}).out);

  const ProgramResult lines = generate({"--json"});
  EXPECT_EQ(lines.status, 0);
  std::istringstream in(lines.out);
  std::string bytes;
  for (std::string line; std::getline(in, line);) {
    const json object = json::parse(line);
    if (!object.contains("token")) continue;
    bytes += static_cast<char>(object["token"].get<int>());
    EXPECT_LE(object["log_probability"].get<double>(), 0);
  }
  EXPECT_EQ(bytes + "\n", generate({}).out);
}

TEST_F(Generation, ASessionGoesOnInAnotherProcess) {
  const std::vector<std::string> all = {"generate", "run", "--temperature", "0", "--prompt", "It was", "-n", "50"};
  const std::string whole = run(all).out;
  const ProgramResult first =
      run({"generate", "run", "--temperature", "0", "--prompt", "It was", "-n", "20", "--session", "talk.session"});
  EXPECT_EQ(first.status, 0) << first.err;
  EXPECT_TRUE(has(first.err, "session of 26 bytes saved to talk.session")) << first.err;
  const ProgramResult read =
      run({"generate", "run", "--temperature", "0", "-n", "30", "--load-session", "talk.session"});
  EXPECT_EQ(read.status, 0) << read.err;
  const ProgramResult second = run({"generate", "run", "--temperature", "0", "-n", "30", "--session", "talk.session"});
  EXPECT_TRUE(has(second.err, "session of 26 bytes from talk.session")) << second.err;
  EXPECT_TRUE(has(second.err, "session of 56 bytes saved")) << second.err;
  EXPECT_EQ(read.out, second.out);
  EXPECT_EQ(first.out.substr(0, 20) + second.out, whole);
  ASSERT_EQ(train("window", "other").status, 0);
  expect_refusal(run({"generate", "other", "--load-session", "talk.session"}), 1, {"[session]", "expected"});
  expect_refusal(run({"generate", "run", "--load-session", "none.session"}), 1, {"none.session"});
  expect_refusal(run({"generate", "run", "--session", "a", "--save-session", "b"}), 2,
                 {"[--session]", "--save-session"});
  expect_refusal(run({"generate", "run", "--samples", "2", "--save-session", "b"}), 2, {"[--samples]"});
}

TEST_F(Generation, CallsOfASessionAreOneCall) {
  const auto bytes = [&](const std::vector<std::string>& more) {
    std::vector<std::string> words = {"generate", "run", "--repetition", "1.7", "--quiet"};
    words.insert(words.end(), more.begin(), more.end());
    const ProgramResult ran = run(words);
    EXPECT_EQ(ran.status, 0) << ran.err;
    return ran.out.substr(0, ran.out.size() - 1);
  };
  const std::string first = bytes({"-n", "10", "--prompt", "the cat", "--session", "s"});
  EXPECT_EQ(first + bytes({"-n", "10", "--session", "s"}), bytes({"-n", "20", "--prompt", "the cat"}));
  write("long", std::string(2000, 'a'));
  bytes({"-n", "0", "--prompt-file", "long", "--session", "s"});
  const std::string before = read("s");
  expect_refusal(generate({"--quiet", "--session", "s", "--repetition", "2", "--repetition-window", "1500"}), 2,
                 {"[session.recent]", "1500", "at most 1024"});
  EXPECT_EQ(read("s"), before);
}

TEST_F(Generation, ASessionAtItsLimitWritesNoMore) {
  ASSERT_EQ(train("gpt", "gpt").status, 0);
  const std::vector<std::string> words = {"generate", "gpt", "-n", "100", "--at-limit", "stop", "--session", "s"};
  const ProgramResult first = run(words);
  EXPECT_EQ(first.out.size(), 32u);  // a newline that was read, 31 bytes, and the one at the end
  EXPECT_TRUE(has(first.err, "session of 32 bytes saved to s")) << first.err;
  for (int call = 0; call < 2; ++call) {
    const ProgramResult next = run(words);
    EXPECT_EQ(next.status, 0) << next.err;
    EXPECT_EQ(next.out, "\n");
    EXPECT_TRUE(has(next.err, "ended: limit of 32 tokens; prompt of 0 bytes")) << next.err;
    EXPECT_TRUE(has(next.err, " 0 new at")) << next.err;
    EXPECT_TRUE(has(next.err, "session of 32 bytes saved to s")) << next.err;
  }
}

TEST_F(Generation, ScoresThatAreNoNumbersEndItAndSaveNothing) {
  ASSERT_EQ(generate({"--save-session", "s"}).status, 0);
  const std::string path = (folder / "run/checkpoints/last.safetensors").string(), before = read("s");
  TensorFile file = read_tensors(path);
  for (auto& [name, tensor] : file.tensors)
    if (tensor.is_floating_point() && name.rfind("model.", 0) == 0) tensor.fill_(NAN);
  write_tensors(path, file);
  expect_refusal(generate({"--save-session", "s"}), 1, {"[sampler.scores]", "NaN"});
  expect_refusal(run({"generate", "run", "-n", "0", "--save-session", "s"}), 1, {"[sampler.scores]", "NaN"});
  for (const std::vector<std::string>& more : {std::vector<std::string>{}, {"--save-session", "s"}}) {
    std::vector<std::string> words = {"eval", "run", "--data", "book.txt", "--lengths", "16", "--windows", "1"};
    words.insert(words.end(), more.begin(), more.end());
    expect_refusal(run(words), 1, {"[eval]", "NaN"});
  }
  EXPECT_EQ(read("s"), before);
}

TEST_F(Generation, WhereASessionCannotBeWrittenIsSaidFirst) {
  std::filesystem::create_directories(folder / "taken");
  for (const char* flag : {"--session", "--save-session"}) {
    expect_refusal(generate({flag, "nowhere/s"}), 1, {"[file]", "nowhere/s", "No such file"});
  }
  expect_refusal(generate({"--save-session", "taken"}), 1, {"[file]", "taken", "directory"});
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder / "taken"), {}), 0);
}

TEST_F(Generation, ASessionIsNoRunAndACutOneIsSaidToBeASession) {
  ASSERT_EQ(generate({"--save-session", "s"}).status, 0);
  expect_refusal(run({"generate", "s"}), 1, {"[checkpoint] s", "found a session"});
  const std::string bytes = read("s");
  write("cut", bytes.substr(0, bytes.size() - 100));
  expect_refusal(generate({"--load-session", "cut"}), 1, {"[session] cut", "cut short"});
  std::string changed = bytes;
  changed[changed.size() - 9] = static_cast<char>(changed[changed.size() - 9] ^ 4);
  write("changed", changed);
  expect_refusal(generate({"--load-session", "changed"}), 1, {"[session] changed", "checksum"});
}

TEST_F(Generation, InterruptedInItsPromptItSaysWhatWasRead) {
  ASSERT_EQ(generate({"--save-session", "s"}).status, 0);
  write("long", std::string(3000000, 'a'));
  ProgramChild child(folder, {"generate", "run", "--load-session", "s", "--prompt-file", "long"});
  ASSERT_TRUE(child.wait_for(".err", "session of "));
  child.send(SIGINT);
  const ProgramResult ran = child.finish();
  EXPECT_EQ(ran.status, 130) << ran.err;
  EXPECT_TRUE(has(ran.err, "ended: asked; prompt of 3000000 bytes, of which the first ")) << ran.err;
  EXPECT_TRUE(has(ran.err, " were read at ")) << ran.err;
}

TEST_F(Generation, StopsBeforeAText) {
  const std::string text = run({"generate", "run", "-n", "200", "--quiet"}).out;
  const std::string stop = text.substr(70, 4);
  const ProgramResult ran = run({"generate", "run", "-n", "200", "--stop", stop});
  EXPECT_EQ(ran.status, 0);
  EXPECT_EQ(ran.out, text.substr(0, text.find(stop)) + "\n");
  EXPECT_TRUE(has(ran.err, "ended: stop string")) << ran.err;
}

TEST_F(Generation, WithoutEndUntilThePipeClosesOrAnInterrupt) {
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  {
    ProgramChild child(folder, {"generate", "run", "-n", "-1"}, "", [&] { dup2(ends[1], 1), close(ends[1]); });
    close(ends[1]);
    char block[100];
    size_t got = 0;
    while (got < sizeof block) {
      const ssize_t more = ::read(ends[0], block, sizeof block - got);
      ASSERT_GT(more, 0);
      got += static_cast<size_t>(more);
    }
    close(ends[0]);
    EXPECT_EQ(child.finish().status, 128 + SIGPIPE);
  }
  ProgramChild child(folder, {"generate", "run", "-n", "-1", "--memory-limit", "64k"});
  ASSERT_TRUE(child.wait_for(".out", " "));
  child.send(SIGINT);
  const ProgramResult ran = child.finish();
  EXPECT_EQ(ran.status, 130) << ran.err;
}

TEST_F(Generation, ADatastoreIsFilledFirst) {
  ASSERT_EQ(train("knn_lm", "knn").status, 0);
  const auto bits = [&](const std::vector<std::string>& more) {
    std::vector<std::string> words = {"eval", "knn",      "--data", "book.txt", "--lengths",
                                      "32",   "--tokens", "256",    "--json"};
    words.insert(words.end(), more.begin(), more.end());
    const ProgramResult ran = run(words);
    EXPECT_EQ(ran.status, 0) << ran.err;
    return json::parse(ran.out)["lengths"][0]["bits_per_byte"].get<double>();
  };
  const double alone = bits({"--store", "none"}), with = bits({});
  EXPECT_LT(with, alone);  // the book repeats itself
  EXPECT_EQ(bits({"--store", "book.txt"}), bits({"--store", "book.txt"}));
  EXPECT_EQ(run({"generate", "knn", "-n", "5"}).status, 0);
  std::filesystem::rename(folder / "book.txt", folder / "moved.txt");
  expect_refusal(run({"generate", "knn", "-n", "5"}), 2, {"[--store]", "book.txt", "gone or changed"});
  EXPECT_EQ(run({"generate", "knn", "-n", "5", "--store", "moved.txt"}).status, 0);
}

}  // namespace
}  // namespace kinfolk
