// What each memory says that it keeps.
#include "tests/support/attention.h"

namespace kinfolk {
namespace {
using namespace testing;

struct Said {
  std::string memory, pattern;  // in a recipe
  std::vector<std::string> parts;
};

const std::vector<Said>& all_said() {
  static const std::vector<Said> said = {
      {"\"cache\"", "causal", {"all keys"}},
      {"\"cache\"", "causal & window(9)", {"the newest 9 keys"}},
      {"\"cache\"", "causal & block_local(4, 8)", {"the newest 12 keys"}},
      {"{ kind = \"sinks\", window = 7, first = 3 }",
       "causal & (window(7) | columns(3))",
       {"the first 3 keys", "the newest 7"}},
      {"{ kind = \"segment\", segment = 5, memory = 6 }", "causal", {"inputs of a segment of 5 tokens", "6 before it"}},
      {"{ kind = \"segment\", segment = 5, memory = 6, keep = \"keys\" }", "causal", {"keys of a segment of 5 tokens"}},
      {"{ kind = \"segment\", segment = 5, memory = 6, reach = \"same\" }",
       "causal",
       {"inputs of the newest 6 tokens"}},
      {"{ kind = \"segment\", segment = 5, memory = 6 }", "causal & window(4)", {"inputs of the newest 4 tokens"}},
      {"{ kind = \"compressive\", segment = 5, memory = 6, slots = 8, rate = 2, compress = \"mean_pool\" }",
       "causal",
       {"a segment of 5 tokens", "6 before it", "8 slots of 2 compressed tokens each", "mean_pool"}},
      {"{ kind = \"knn\", segment = 5, local = 6, memory = 70, neighbours = 3 }",
       "causal",
       {"keys of a segment of 5 tokens", "6 before it", "a searched memory of 70 older keys", "3 of them met"}},
  };
  return said;
}

TEST(Keeps, NamesThePartsOfEachMemory) {
  for (const auto& [memory, pattern, parts] : all_said()) {
    const auto branch = make_attention(text("pattern = \"", pattern, "\"\nmemory = ", memory), 8, 2);
    const std::string words = branch->keeps();
    for (const auto& part : parts) EXPECT_NE(words.find(part), std::string::npos) << memory << ": " << words;
  }
}

TEST(Keeps, IsSaidByEveryKind) {
  for (const auto& [kind, entry] : registry<Memory>().entries()) {
    const std::string quoted = text("\"", kind, "\"");
    const auto says = [&](const Said& one) { return one.memory.find(quoted) != std::string::npos; };
    EXPECT_TRUE(std::any_of(all_said().begin(), all_said().end(), says)) << "no sentence of " << kind << " is tested";
  }
}

}  // namespace
}  // namespace kinfolk
