// The operators that have kernels, tested again at each level of instructions below the machine's own.
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <string>

#include "kinfolk/core/errors.h"

namespace kinfolk {
namespace {

class InstructionSets : public testing::TestWithParam<std::tuple<const char*, const char*>> {};

TEST_P(InstructionSets, SameTests) {
  if (std::getenv("KINFOLK_ISA")) GTEST_SKIP() << "one level was asked for";
  const auto [level, suites] = GetParam();
  const std::string command =
      text("KINFOLK_ISA=", level, " /proc/", getpid(), "/exe --gtest_filter='", suites, "' --gtest_brief=1 2>&1");
  FILE* pipe = popen(command.c_str(), "r");
  ASSERT_NE(pipe, nullptr);
  std::string said;
  char part[4096];
  for (size_t n = 0; (n = fread(part, 1, sizeof part, pipe)) > 0;) said.append(part, n);
  EXPECT_EQ(pclose(pipe), 0) << command << "\n" << said;
  EXPECT_EQ(said.find(" 0 tests from"), std::string::npos) << "no such tests: " << suites;
  EXPECT_NE(said.find(" from "), std::string::npos) << said;
}

INSTANTIATE_TEST_SUITE_P(Levels, InstructionSets,
                         testing::Combine(testing::Values("baseline", "avx2"),
                                          testing::Values("Attend*.*-AttendGolden.*", "*DecayGates.*:*ScanDecay*.*",
                                                          "*ScanDelta.*:*ScanGatedDelta.*", "*ScanElementwise.*",
                                                          "*ScanSelective.*", "*ShortConvolution.*", "*Nearest.*")));

}  // namespace
}  // namespace kinfolk
