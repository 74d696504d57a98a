// Wrong usage: one line, exit status 2, nothing written.
#include "tests/cli/program.h"

namespace kinfolk {
namespace {

struct Case {
  std::vector<std::string> words;
  std::vector<std::string> parts;  ///< that the message holds
};

class Usage : public ProgramTest {
 protected:
  void refuse_all(const std::vector<Case>& cases, int status = 2) const {
    for (const auto& [words, parts] : cases) {
      std::string all;
      for (const auto& word : words) all += " " + word;
      SCOPED_TRACE("kinfolk" + all);
      expect_refusal(run(words), status, parts);
    }
  }
};

TEST_F(Usage, CommandsAndFlags) {
  refuse_all({{{}, {"expected a command"}},
              {{"--frob"}, {"[--frob]", "--version"}},
              {{"trian"}, {"trian", "did you mean train?"}},
              {{"train"}, {"[train]", "recipe", "kinfolk train --help"}},
              {{"train", "rope"}, {"--data"}},
              {{"train", "rope", "--data"}, {"[--data]", "a value"}},
              {{"train", "--frob"}, {"[--frob]"}},
              {{"train", "rope", "--siez", "tiny"}, {"did you mean --size?"}},
              {training("rope", "run", {"--out", "other"}), {"[--out]", "once", "several"}},
              {training("rope", "run", {"more"}), {"no further word", "more"}},
              {{"eval"}, {"[eval]", "run"}},
              {{"list", "rope"}, {"no further word"}},
              {{"list", "--forms", "--markdown"}, {"one of", "several"}}});
  EXPECT_FALSE(exists("run"));
}

TEST_F(Usage, Numbers) {
  const auto with = [](const std::string& flag, const std::string& value) {
    return training("rope", "run", {flag, value});
  };
  refuse_all({{with("--tokens", "0"), {"[--tokens]", "at least 1", "0"}},
              {with("--tokens", "-1"), {"[--tokens]", "-1"}},
              {with("--tokens", "nan"), {"[--tokens]", "nan"}},
              {with("--tokens", "1.5"), {"[--tokens]", "1.5"}},
              {with("--tokens", "0x10"), {"[--tokens]", "0x10"}},
              {with("--tokens", "3"), {"tokens", "4 lanes", "3"}},
              {with("--tokens", ""), {"[--tokens]", "found nothing"}},
              {with("--minutes", "0"), {"[--minutes]", "more than 0"}},
              {with("--minutes", "inf"), {"[--minutes]", "finite", "inf"}},
              {with("--work", "0"), {"[--work]", "at least 1"}},
              {with("--learning-rate", "nan"), {"[--learning-rate]", "finite"}},
              {with("--learning-rate", "-1"), {"learning_rate", "at least 0"}},
              {with("--lanes", "0"), {"lanes", "at least 1"}},
              {with("--budget", "0"), {"[--budget]", "at least 1"}},
              {with("--precision", "f16"), {"precision", "float32", "bf16"}},
              {training("rope", "run", {"--tokens", "400", "--minutes", "1"}), {"one budget", "tokens and minutes"}},
              {training("rope", "run", {"--lanes", "3", "--accumulate", "2"}), {"accumulate", "3"}}});
  EXPECT_FALSE(exists("run"));
}

TEST_F(Usage, Names) {
  refuse_all({{training("rpoe", "run"), {"did you mean rope?"}},
              {training("nowhere.toml", "run"), {"nowhere.toml"}},
              {{"train", "rope", "--data", "book.txt", "--out", "run", "--size", "tyni"}, {"did you mean tiny?"}},
              {training("window", "run", {"--set", "let.widnow=3"}), {"widnow"}},
              {training("rope", "run", {"--set", "layrs.0=3"}), {"did you mean layers?"}},
              {training("rope", "run", {"--set", "let"}), {"key=value"}},
              {training("rope", "run", {"--set", "layers.0.branches.0.heads=3"}), {"branches.0.heads]", "divisor"}},
              {training("rope", "run", {"--resume", "never"}), {"[--resume]", "auto", "never"}},
              {{"describe", "rop"}, {"rop"}},
              {{"explain", "rop"}, {"did you mean rope?"}},
              {{"draw", "memory"}, {"memory RECIPE"}},
              {{"draw", "causal", "--set", "a=b"}, {"[draw.--set]"}},
              {{"draw", "causal", "--length", "0"}, {"[--length]"}},
              {{"draw", "causal", "--length", "3000"}, {"1536"}},
              {{"draw", "memory", "rope", "--length", "300"}, {"256"}},
              {{"draw", "causal", "--prefix", "3"}, {"[--prefix]", "@prefix"}},
              {{"draw", "window", "--global", "3"}, {"[--global]", "@global"}},
              {{"draw", "global(@global)", "--global", "7", "--length", "6"}, {"[--global]", "at most 5", "7"}},
              {{"draw", "rope", "causal"}, {"one recipe, or patterns"}},
              {{"draw", "mamba"}, {"a pattern of attention"}},
              {{"check", "no_such_thing"}, {"no_such_thing"}},
              {{"bench", "rop"}, {"did you mean rope?"}},
              {{"bench", "rope", "--lengths", "0"}, {"[--lengths]"}}});
  EXPECT_FALSE(exists("run"));
}

TEST_F(Usage, PatternsShowTheFault) {
  const ProgramResult ran = run({"draw", "causal & widnow(4)"});
  EXPECT_EQ(ran.status, 2);
  EXPECT_EQ(ran.out, "");
  EXPECT_TRUE(has(ran.err, "widnow")) << ran.err;
  EXPECT_TRUE(has(ran.err, "\n           ^")) << ran.err;
}

TEST_F(Usage, SizesThatCannotWork) {
  const auto sized = [&](const std::string& name, const std::string& lines) {
    write(name, lines + "\n[train]\nlanes = 4\ntokens = 400\n");
    return std::vector<std::string>{"train", "rope", "--data", "book.txt", "--size", name, "--out", "run"};
  };
  refuse_all({{sized("a.toml", "width = 33\nheads = 2"), {"size.width", "multiple", "33"}},
              {sized("b.toml", "heads = 0"), {"b.toml:1:1", "size.heads", "at least 1", "0"}},
              {sized("c.toml", "width = -32"), {"size.width", "-32"}},
              {sized("d.toml", "depth = 100000000"), {"size.depth", "at most"}},
              {sized("e.toml", "context = 9999999999999"), {"size.context", "at most"}},
              {sized("f.toml", "wdith = 3"), {"f.toml:1:1", "did you mean width?"}},
              {sized("g.toml", "width = 3.5"), {"size.width", "integer"}},
              {sized("h.toml", "vocabulary = 50\nwidth = 16\nheads = 2"), {"vocabulary = 50"}},
              {training("gpt", "run", {"--length", "64"}), {"length", "at most 32", "64"}},
              {training("rope", "run", {"--length", "6000"}), {"bytes", "6000"}}});
  refuse_all({{sized("i.toml", "width = 1048576"), {"fits", "memory"}},
              {training("rope", "run", {"--budget", "10"}), {"[budget]", "10", "nearest"}}},
             1);
  EXPECT_FALSE(exists("run"));
}

TEST_F(Usage, HelpOfEveryCommand) {
  const ProgramResult all = run({"--help"});
  EXPECT_EQ(all.status, 0);
  for (const char* command :
       {"train", "compare", "eval", "generate", "list", "describe", "explain", "draw", "check", "bench"}) {
    SCOPED_TRACE(command);
    EXPECT_TRUE(has(all.out, std::string("\n  ") + command + " ")) << all.out;
    const ProgramResult ran = run({command, "--help"});
    EXPECT_EQ(ran.status, 0);
    EXPECT_EQ(ran.err, "");
    EXPECT_TRUE(has(ran.out, std::string("Usage: kinfolk ") + command)) << ran.out;
  }
  EXPECT_EQ(run({"--version"}).out.rfind("kinfolk ", 0), 0u);
}

TEST_F(Usage, ClosedOrFullOutput) {
  for (const auto& before :
       std::vector<std::function<void()>>{[] { close(1); }, [] { dup2(open("/dev/full", O_WRONLY), 1); }}) {
    expect_refusal(run({"list"}, "", before), 1, {"[output]", "closed or full"});
  }
  // Streams that are closed must not lend their numbers to the files of a run.
  EXPECT_EQ(run(training("rope", "run", {"--tokens", "400"}), "", [] { close(1), close(2); }).status, 1);
  for (std::istringstream log(read("run/log.jsonl")); log.peek() != EOF;) {
    std::string line;
    std::getline(log, line);
    EXPECT_EQ(line.rfind("{\"event\"", 0), 0u) << line;
  }
}

}  // namespace
}  // namespace kinfolk
