#include "kinfolk/core/options.h"

#include <gtest/gtest.h>

#include "kinfolk/core/errors.h"

namespace kinfolk {
namespace {

struct Sample {
  int64_t heads = 8;
  double rate = 0.5;
  double gain = 1;
  bool on = false;
  std::string norm = "before";
  std::vector<int64_t> sizes = {1, 2};
  std::vector<std::string> words;
  Spec one = "add";
  std::vector<Spec> several;
  template <class Visit>
  void fields(Visit&& visit) {
    visit("heads", heads, "query heads", at_least(1));
    visit("rate", rate, "a share", between(0, 1));
    visit("on", on, "whether");
    visit("norm", norm, "where", one_of({"before", "after", "none"}));
    visit("sizes", sizes, "several numbers", at_least(1));
    visit("words", words, "several words");
    visit("one", one, "a component");
    visit("several", several, "components");
    visit("gain", gain, "any number");
  }
};

std::string fault(const std::string& toml) {
  try {
    const Value let = parse_toml("w = 3\nname = \"x\"", "let");
    read_options<Sample>(parse_toml(toml, "t.toml"), "mixer", &let);
  } catch (const UsageError& error) {
    return error.what();
  }
  return "no error";
}

TEST(Options, RoundTrip) {
  Sample a;
  a.heads = 3, a.rate = 0.25, a.on = true, a.norm = "after", a.sizes = {5}, a.words = {"u", "v w"};
  a.one = Spec(parse_value("{ kind = \"gru\", gate = 2 }", ""));
  a.several = {"rope", Spec(parse_value("{ kind = \"log_n\" }", ""))};
  const std::string written = write_toml(write_options(a));
  const auto b = read_options<Sample>(parse_toml(written, "t.toml"), "x");
  EXPECT_EQ(write_toml(write_options(b)), written);
  EXPECT_EQ(b.heads, 3);
  EXPECT_EQ(b.one.kind(), "gru");
  EXPECT_EQ(b.several[0].kind(), "rope");
  EXPECT_EQ(b.words, a.words);
}

TEST(Options, StandardValuesStandWhereNothingIsWritten) {
  const auto a = read_options<Sample>(Value(), "x");
  EXPECT_EQ(write_toml(write_options(a)), write_toml(write_options(Sample())));
  EXPECT_EQ(read_options<Sample>(Value("sample"), "x").heads, 8);  // a component by its name alone
}

TEST(Options, IntegersAreNumbersButNumbersAreNotIntegers) {
  EXPECT_EQ(read_options<Sample>(parse_toml("rate = 1", "t"), "x").rate, 1.0);
  EXPECT_EQ(fault("heads = 4.5"), "t.toml:1:1: [mixer.heads] expected an integer, at least 1; found 4.5");
  EXPECT_EQ(fault("heads = 4.0"), "t.toml:1:1: [mixer.heads] expected an integer, at least 1; found 4.0");
}

TEST(Options, NamesStandForTheirValuesInNumberFieldsOnly) {
  const Value let = parse_toml("w = 3\nbefore = 1", "let");
  const auto a =
      read_options<Sample>(parse_toml("heads = \"w\"\nsizes = [\"w\", 1]\nnorm = \"before\"", "t"), "x", &let);
  EXPECT_EQ(a.heads, 3);
  EXPECT_EQ(a.sizes[0], 3);
  EXPECT_EQ(a.norm, "before");
}

TEST(Options, FaultsNameThePlaceWhatWasExpectedAndWhatWasFound) {
  EXPECT_EQ(fault("on = true\nwidnow = 3\n").rfind("t.toml:2:1: [mixer.widnow] expected a known key; found widnow", 0),
            0u);
  EXPECT_NE(fault("haeds = 3").find("(did you mean heads?); known: heads rate on norm sizes words one several gain"),
            std::string::npos);
  EXPECT_EQ(fault("\n heads = 0"), "t.toml:2:2: [mixer.heads] expected at least 1; found 0");
  EXPECT_EQ(fault("heads = \"many\""), "t.toml:1:1: [mixer.heads] expected an integer, at least 1; found \"many\"");
  EXPECT_EQ(fault("heads = \"name\""),
            "t.toml:1:1: [mixer.heads] expected an integer, at least 1; found \"x\" (name, set at let:2:1)");
  EXPECT_EQ(fault("norm = \"w\""), "t.toml:1:1: [mixer.norm] expected one of before after none; found \"w\"");
  EXPECT_EQ(fault("rate = \"w\""), "t.toml:1:1: [mixer.rate] expected 0 to 1; found 3 (w, set at let:1:1)");
  EXPECT_EQ(fault("heads = [1]"), "t.toml:1:1: [mixer.heads] expected an integer, at least 1; found a list");
  EXPECT_EQ(fault("rate = 2"), "t.toml:1:1: [mixer.rate] expected 0 to 1; found 2");
  EXPECT_EQ(fault("rate = nan"), "t.toml:1:1: [mixer.rate] expected 0 to 1; found nan");
  EXPECT_EQ(fault("gain = inf"), "t.toml:1:1: [mixer.gain] expected a finite number; found inf");
  EXPECT_EQ(fault("on = 1"), "t.toml:1:1: [mixer.on] expected true or false; found 1");
  EXPECT_EQ(fault("norm = \"befor\""),
            "t.toml:1:1: [mixer.norm] expected one of before after none (did you mean before?); found \"befor\"");
  EXPECT_EQ(fault("sizes = 3"), "t.toml:1:1: [mixer.sizes] expected a list of integers; found 3");
  EXPECT_EQ(fault("sizes = [4, 0]"), "t.toml:1:13: [mixer.sizes[1]] expected at least 1; found 0");
  EXPECT_EQ(fault("words = [1]"), "t.toml:1:10: [mixer.words[0]] expected text; found 1");
  EXPECT_NE(fault("one = 3").find("[mixer.one] expected a component: its name, or a table with a kind; found 3"),
            std::string::npos);
  EXPECT_NE(fault("several = [{ base = 3 }]").find("t.toml:1:12: [mixer.several[0]] expected a component"),
            std::string::npos);
  EXPECT_NE(fault("several = [\"\"]").find("expected a component"), std::string::npos);
}

TEST(Options, NotATable) {
  try {
    read_options<Sample>(Value(3), "mixer");
    FAIL();
  } catch (const UsageError& error) {
    EXPECT_STREQ(error.what(), "[mixer] expected a table of options; found an integer");
  }
}

TEST(Options, ReservedKeysAreLeftToOthers) {
  const Value table = parse_toml("kind = \"x\"\nheads = 2", "t");
  EXPECT_EQ(read_options<Sample>(table, "x", nullptr, {"kind"}).heads, 2);
  EXPECT_THROW(read_options<Sample>(table, "x"), UsageError);
}

TEST(Options, EveryFieldIsListedWithItsStandardAndWhatItAccepts) {
  const auto fields = list_fields<Sample>();
  ASSERT_EQ(fields.size(), 9u);
  EXPECT_EQ(
      fields[0].key + "|" + fields[0].type + "|" + fields[0].standard + "|" + fields[0].about + "|" + fields[0].accepts,
      "heads|integer|8|query heads|at least 1");
  EXPECT_EQ(fields[1].accepts, "0 to 1");
  EXPECT_EQ(fields[3].accepts, "one of before after none");
  EXPECT_EQ(fields[4].standard, "[1, 2]");
  EXPECT_EQ(fields[6].standard, "\"add\"");
}

}  // namespace
}  // namespace kinfolk
