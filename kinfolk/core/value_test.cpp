#include "kinfolk/core/value.h"

#include <gtest/gtest.h>

#include <filesystem>

#include "kinfolk/core/errors.h"

namespace kinfolk {
namespace {

template <class F>
std::string message(const F& f) {
  try {
    f();
  } catch (const UsageError& error) {
    return error.what();
  }
  return "no error";
}

const char* kText = R"(
about = "a \"quoted\" text\nof two lines, a tab\t, a control \u0001, é"
count = -3
rate = 1e-3
whole = 2.0
huge = 1e300
on = true
list = [1, 2]
mixed = ["rope", { kind = "log_n", trained = 512 }]
empty = []
"key with spaces" = 1
"a.b" = 2
[let]
window = 64
[at.test]
"layers.0.qk" = []
[[layers]]
repeat = "all"
[[layers.branches]]
kind = "attention"
[[layers.branches]]
kind = "mlp"
options = { kind = "x", deep = { deeper = [[1], []] } }
[[layers]]
)";

TEST(Value, ReadsEveryType) {
  const Value v = parse_toml(kText, "t.toml");
  EXPECT_EQ(*v.find("about")->as<std::string>(), "a \"quoted\" text\nof two lines, a tab\t, a control \x01, é");
  EXPECT_EQ(*v.find("count")->as<int64_t>(), -3);
  EXPECT_EQ(*v.find("rate")->as<double>(), 1e-3);
  EXPECT_EQ(v.find("whole")->as<int64_t>(), nullptr);  // 2.0 is no integer
  EXPECT_EQ(*v.find("on")->as<bool>(), true);
  EXPECT_EQ(v.find("list")->as<Value::Array>()->size(), 2u);
  EXPECT_EQ(v.find("layers")->as<Value::Array>()->size(), 2u);
  EXPECT_EQ(v.find("nothing"), nullptr);
}

TEST(Value, KeepsTheOrderOfTheFile) {
  const Value v = parse_toml("z = 1\na = 2\nm = 3\n[y]\n[b]\n", "t.toml");
  std::string order;
  for (const auto& [key, value] : *v.as<Value::Table>()) order += key;
  EXPECT_EQ(order, "zamyb");
}

TEST(Value, KnowsWhereEachSettingStands) {
  const Value v = parse_toml("a = 1\n  bb = [1,\n    2]\n[c]\nd = { e = 5 }\n", "t.toml");
  EXPECT_EQ(v.find("a")->place.text(), "t.toml:1:1: ");
  EXPECT_EQ(v.find("bb")->place.text(), "t.toml:2:3: ");
  EXPECT_EQ((*v.find("bb")->as<Value::Array>())[1].place.text(), "t.toml:3:5: ");
  EXPECT_EQ(v.find("c")->find("d")->find("e")->place.text(), "t.toml:5:7: ");
  EXPECT_EQ(Place{}.text(), "");
}

TEST(Value, WritesWhatItReadsBack) {
  const Value v = parse_toml(kText, "t.toml");
  const std::string once = write_toml(v);
  const std::string twice = write_toml(parse_toml(once, "u.toml"));
  EXPECT_EQ(once, twice);
  // Equal as trees, not only as texts: compare value by value on one line each.
  const Value back = parse_toml(once, "u.toml");
  for (const auto& [key, value] : *v.as<Value::Table>()) {
    ASSERT_NE(back.find(key), nullptr) << key;
    EXPECT_EQ(write_toml_value(*back.find(key)), write_toml_value(value)) << key;
  }
  EXPECT_EQ(back.as<Value::Table>()->size(), v.as<Value::Table>()->size());
}

TEST(Value, WritesNumbersThatReadBackBitForBit) {
  for (const double d : {0.1, 1.0 / 3, 1e300, -2.5e-320, 2.0, 1e22, 123456789.0, -0.0}) {
    const Value v = parse_value(write_toml_value(Value(d)), "x");
    ASSERT_NE(v.as<double>(), nullptr) << write_toml_value(Value(d));
    EXPECT_EQ(*v.as<double>(), d);
  }
  EXPECT_EQ(*parse_value(write_toml_value(Value(INT64_MIN)), "x").as<int64_t>(), INT64_MIN);
}

TEST(Value, MalformedTomlIsRefusedWithItsPlace) {
  EXPECT_EQ(message([] { parse_toml("a = 1\nb = \n", "t.toml"); }).rfind("t.toml:2:", 0), 0u);
  EXPECT_EQ(message([] { parse_toml("a = 1\na = 2\n", "t.toml"); }).rfind("t.toml:2:", 0), 0u);
  EXPECT_NE(message([] { parse_toml("a = 2020-01-01\n", "t.toml"); }).find("t.toml:1:5: "), std::string::npos);
  EXPECT_NE(message([] { read_toml("/nonexistent/x.toml"); }).find("/nonexistent/x.toml"), std::string::npos);
  EXPECT_NE(message([] { read_toml(std::filesystem::temp_directory_path().string()); }), "no error");
}

TEST(Value, PathsAddressTablesAndLists) {
  Value v = parse_toml(kText, "t.toml");
  EXPECT_EQ(*find_path(v, "layers.0.branches.1.kind")->as<std::string>(), "mlp");
  set_path(v, "layers.0.branches.1.window", Value(7));
  EXPECT_EQ(*find_path(v, "layers.0.branches.1.window")->as<int64_t>(), 7);
  set_path(v, "list.1", Value(9));
  EXPECT_EQ(*find_path(v, "list.1")->as<int64_t>(), 9);
  set_path(v, "mixed.0.base", Value(5));  // a component by its name alone gets options
  EXPECT_EQ(write_toml_value(*find_path(v, "mixed.0")), "{ kind = \"rope\", base = 5 }");
  set_path(v, "new", Value(1));
  EXPECT_EQ(*v.find("new")->as<int64_t>(), 1);
}

TEST(Value, PathsThatLeadNowhereAreRefused) {
  Value v = parse_toml(kText, "t.toml");
  EXPECT_NE(message([&] { find_path(v, "layer.0"); }).find("did you mean layers?"), std::string::npos);
  EXPECT_NE(message([&] { find_path(v, "layers.2.repeat"); }).find("an index below 2; found 2"), std::string::npos);
  EXPECT_NE(message([&] { find_path(v, "layers.-1.repeat"); }).find("an index below 2"), std::string::npos);
  EXPECT_NE(message([&] { find_path(v, "layers.99999999999999999999"); }).find("an index below 2"), std::string::npos);
  EXPECT_NE(message([&] { set_path(v, "count.deep", Value(1)); }).find("found an integer"), std::string::npos);
  for (const char* path : {"", ".", "a..b", ".a", "a."}) {
    EXPECT_NE(message([&] { set_path(v, path, Value(1)); }).find("expected a path such as"), std::string::npos) << path;
    EXPECT_NE(message([&] { find_path(v, path); }), "no error") << path;
  }
}

TEST(Value, ValuesOfFlagsAreTomlOrBareText) {
  EXPECT_EQ(*parse_value("64", "--set a").as<int64_t>(), 64);
  EXPECT_EQ(*parse_value("1.5", "--set a").as<double>(), 1.5);
  EXPECT_EQ(*parse_value("rope", "--set a").as<std::string>(), "rope");
  EXPECT_EQ(*parse_value("causal & window(8)", "--set a").as<std::string>(), "causal & window(8)");
  EXPECT_EQ(parse_value("[\"rope\", { kind = \"log_n\" }]", "--set a").as<Value::Array>()->size(), 2u);
  EXPECT_EQ(parse_value("{ kind = \"log_n\" }", "--set a").place.text(), "--set a: ");
  EXPECT_EQ(*parse_value("", "--set a").as<std::string>(), "");
  // A line break must not smuggle in a second setting.
  EXPECT_EQ(*parse_value("1\nb = 2", "--set a").as<std::string>(), "1\nb = 2");
}

TEST(Value, NearestWords) {
  EXPECT_EQ(nearest("widnow", {"heads", "window", "dropout"}), "window");
  EXPECT_EQ(nearest("zzzz", {"heads", "window"}), "");
  EXPECT_EQ(nearest("", {"a"}), "a");
  EXPECT_EQ(suggest("head", {"heads", "window"}), " (did you mean heads?); known: heads window");
}

}  // namespace
}  // namespace kinfolk
