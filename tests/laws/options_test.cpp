// Options of every listed component: documented, written and read back, refused where they cannot be.
#include <set>

#include "kinfolk/nn/mixers/cell.h"
#include "kinfolk/nn/score/score.h"
#include "tests/laws/bench.h"

namespace kinfolk::laws {
namespace {

Context context_of_tests() {
  Context context;
  context.size.width = 32, context.size.heads = 2, context.size.feed = 24, context.size.vocabulary = 17;
  context.size.context = 24;
  context.like = at::TensorOptions().dtype(at::kDouble);
  context.path = "here";
  context.tied = at::zeros({17, 32}, context.like);
  context.heads.count = 2, context.heads.width = 16, context.heads.scale = 0.25;
  return context;
}

/// Calls f(registry, name, entry) for every component of every kind.
template <class F>
void for_each(F&& f) {
  const auto all = [&](auto& list) {
    ASSERT_FALSE(list.entries().empty()) << list.kind();
    for (const auto& [name, entry] : list.entries()) {
      SCOPED_TRACE(list.kind() + " " + name);
      f(list, name, entry);
    }
  };
  all(registry<Branch>());
  all(registry<QkStep>());
  all(registry<Score>());
  all(registry<Cell>());
  all(registry<Memory>());
  all(registry<Residual>());
  all(registry<Depth>());
  all(registry<Input>());
  all(registry<Head>());
}

Value table_of(const std::string& kind) {
  Value table{Value::Table{}};
  table.set("kind", Value(kind));
  return table;
}

/// The message of what `make` throws; "" when it does not.
template <class Make>
std::string refusal(Make&& make) {
  try {
    make();
  } catch (const UsageError& error) {
    return error.what();
  }
  return "";
}

std::map<std::string, std::vector<int64_t>> shapes(const torch::nn::Module& module) {
  std::map<std::string, std::vector<int64_t>> out;
  for (const auto& item : module.named_parameters()) out[item.key()] = item.value().sizes().vec();
  return out;
}

TEST(Options, EveryComponentAndFieldIsDocumented) {
  for_each([](const auto&, const std::string& name, const auto& entry) {
    EXPECT_GT(entry.about.size(), 5u);
    EXPECT_EQ(name, [&] {
      std::string snake;
      for (const char c : name) snake += std::isupper(c) || c == '-' ? '_' : c;
      return snake;
    }()) << "names are in snake_case";
    std::set<std::string> keys;
    for (const Field& field : entry.fields()) {
      EXPECT_TRUE(keys.insert(field.key).second) << field.key << " is listed twice";
      EXPECT_GT(field.about.size(), 5u) << field.key;
      EXPECT_FALSE(field.type.empty()) << field.key;
      for (const char* reserved : {"kind", "norm", "norm_kind", "residual", "share", "repeat"}) {
        EXPECT_NE(field.key, reserved) << "is a word of the layer's";
      }
    }
  });
}

TEST(Options, StandardsWrittenOutGiveTheSameComponent) {
  for_each([](const auto& list, const std::string& name, const auto& entry) {
    Value written = table_of(name);
    for (const Field& field : entry.fields()) {
      if (!field.standard.empty()) written.set(field.key, parse_value(field.standard, field.key));
    }
    // Through text, as a checkpoint keeps it.
    const Value read = parse_toml(write_toml(written), "written.toml");
    const Context context = context_of_tests();
    const auto plain = list.create(Spec(table_of(name)), context, "here"),
               again = list.create(Spec(read), context, "here");
    EXPECT_EQ(shapes(*plain), shapes(*again));
  });
}

TEST(Options, UnknownKeysAreRefusedWithTheNearestKnownOne) {
  for_each([](const auto& list, const std::string& name, const auto& entry) {
    const Context context = context_of_tests();
    Value table = parse_toml("kind = \"" + name + "\"\nunheard_of = 1\n", "mine.toml");
    const std::string said = refusal([&] { list.create(Spec(table), context, "here.it"); });
    EXPECT_NE(said.find("mine.toml:2:"), std::string::npos) << said;
    EXPECT_NE(said.find("unheard_of"), std::string::npos) << said;
    for (const Field& field : entry.fields()) {
      EXPECT_NE(said.find(field.key), std::string::npos) << field.key << " is not named as known in: " << said;
      Value typo = table_of(name);
      typo.set(field.key + "x", Value(1));
      const std::string answer = refusal([&] { list.create(Spec(typo), context, "here.it"); });
      if (field.key.size() >= 3) {
        EXPECT_NE(answer.find("did you mean " + field.key), std::string::npos) << answer;
      } else {
        EXPECT_FALSE(answer.empty());
      }
    }
  });
}

TEST(Options, ValuesOfAnotherTypeOrOutOfRangeAreRefused) {
  int64_t tried = 0;
  for_each([&](const auto& list, const std::string& name, const auto& entry) {
    const Context context = context_of_tests();
    for (const Field& field : entry.fields()) {
      std::vector<Value> wrong;
      if (field.type == "text" || field.type == "list of text") {
        wrong = {Value(7)};
      } else if (field.type == "component" || field.type == "list of components") {
        wrong = {Value(7), Value(true)};
      } else {
        wrong = {Value("no_such_name")};
      }
      if (field.type == "integer") wrong.emplace_back(4.5), wrong.emplace_back(true);
      if (field.accepts.rfind("one of", 0) == 0) wrong.emplace_back("no_such_choice");
      double lowest = 0, highest = 0;
      if (std::sscanf(field.accepts.c_str(), "at least %lf", &lowest) == 1 ||
          std::sscanf(field.accepts.c_str(), "%lf to %lf", &lowest, &highest) == 2) {
        if (field.type == "integer") {
          wrong.emplace_back(static_cast<int64_t>(lowest) - 1);
        } else {
          wrong.emplace_back(lowest - 0.5);
          wrong.emplace_back(std::nan(""));
        }
      }
      for (const Value& value : wrong) {
        Value table = table_of(name);
        table.set(field.key, value);
        const std::string said = refusal([&] { list.create(Spec(table), context, "here.it"); });
        EXPECT_NE(said.find(field.key), std::string::npos)
            << field.key << " = " << write_toml_value(value) << " gave: " << (said.empty() ? "no refusal" : said);
        EXPECT_EQ(said.find('\n'), std::string::npos) << "one line: " << said;
        ++tried;
      }
    }
  });
  EXPECT_GT(tried, 100);
}

TEST(Options, UnknownComponentsAreRefusedWithTheNearestKnownOne) {
  for_each([](const auto& list, const std::string& name, const auto&) {
    const Context context = context_of_tests();
    const std::string said = refusal([&] { list.create(Spec(table_of(name + "x")), context, "here.it"); });
    EXPECT_NE(said.find("here.it"), std::string::npos) << said;
    EXPECT_NE(said.find(name), std::string::npos) << said;
  });
}

TEST(Options, TwoComponentsNeverShareTensorsUnlessAsked) {
  for_each([](const auto& list, const std::string& name, const auto&) {
    Context context = context_of_tests();
    std::map<std::string, std::shared_ptr<torch::nn::Module>> shared;
    context.shared = &shared;
    const auto one = list.create(Spec(table_of(name)), context, "here"),
               other = list.create(Spec(table_of(name)), context, "here");
    std::set<const void*> seen;
    for (const auto& p : one->parameters()) seen.insert(p.unsafeGetTensorImpl());
    for (const auto& p : other->parameters()) EXPECT_FALSE(seen.count(p.unsafeGetTensorImpl()));
    Value table = table_of(name);
    table.set("share", Value("us"));
    EXPECT_EQ(list.create(Spec(table), context, "here"), list.create(Spec(table), context, "there"));
  });
}

}  // namespace
}  // namespace kinfolk::laws
