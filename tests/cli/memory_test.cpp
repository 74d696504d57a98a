// Members with a memory of segments: trained with one length of it, evaluated with that or a longer one by one setting.
#include <nlohmann/json.hpp>

#include "tests/cli/program.h"

namespace kinfolk {
namespace {

using nlohmann::json;

class MemoryOf : public ProgramTest {
 protected:
  /// What `eval` says of 64 bytes, read in one stream.
  json scored(const std::string& name, const std::vector<std::string>& sets) {
    std::vector<std::string> words{"eval", name, "--data", "book.txt", "--lengths", "64", "--json"};
    for (const auto& set : sets) words.insert(words.end(), {"--set", set});
    const ProgramResult ran = run(words);
    EXPECT_EQ(ran.status, 0) << ran.err;
    return json::parse(ran.out, nullptr, false)["lengths"][0];
  }
};

TEST_F(MemoryOf, TransformerXlTakesALongerOneAtEvaluation) {
  ASSERT_EQ(train("transformer_xl", "xl", {"--set", "let.segment=8", "--set", "let.memory=8"}).status, 0);
  const json trained = scored("xl", {}), same = scored("xl", {"let.memory=8"}),
             longer = scored("xl", {"let.memory=24"});
  EXPECT_EQ(trained["mode"], "stream");
  EXPECT_EQ(trained["bits_per_byte"], same["bits_per_byte"]);
  EXPECT_EQ(trained["state_bytes"], same["state_bytes"]);
  EXPECT_NE(trained["bits_per_byte"], longer["bits_per_byte"]);
  EXPECT_GT(longer["state_bytes"].get<int64_t>(), 2 * trained["state_bytes"].get<int64_t>());
  // From the whole text on, still more memory holds no more.
  const json whole = scored("xl", {"let.memory=64"}), beyond = scored("xl", {"let.memory=200"});
  EXPECT_NEAR(whole["bits_per_byte"].get<double>(), beyond["bits_per_byte"].get<double>(), 1e-6);
  EXPECT_NE(whole["bits_per_byte"], longer["bits_per_byte"]);
}

TEST_F(MemoryOf, CompressiveTrainsEvaluatesAndGenerates) {
  const std::vector<std::string> small{"--set", "let.segment=8", "--set", "let.memory=8", "--set", "let.slots=4"};
  for (const std::string kind : {"conv", "most_used"}) {
    SCOPED_TRACE(kind);
    auto flags = small;
    flags.insert(flags.end(), {"--set", "layers.0.branches.0.memory.compress=" + kind});
    const ProgramResult ran = train("compressive", kind, flags);
    ASSERT_EQ(ran.status, 0) << ran.err;
    EXPECT_TRUE(has(read(kind + "/log.jsonl"), "compression"));  // its loss, by name
    const json trained = scored(kind, {}), longer = scored(kind, {"let.slots=12"});
    EXPECT_LT(trained["bits_per_byte"].get<double>(), 8);
    EXPECT_GT(longer["state_bytes"].get<int64_t>(), trained["state_bytes"].get<int64_t>());
    EXPECT_NE(longer["bits_per_byte"], trained["bits_per_byte"]);
    const ProgramResult written = run({"generate", kind, "--prompt", "the cat ", "-n", "40"});
    EXPECT_EQ(written.status, 0) << written.err;
    EXPECT_EQ(written.out.size(), 41u);
  }
}

}  // namespace
}  // namespace kinfolk
