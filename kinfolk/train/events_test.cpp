#include "kinfolk/train/events.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <limits>
#include <map>
#include <vector>

#include "kinfolk/core/errors.h"

namespace kinfolk {
namespace {

struct Event {
  double wall_time = 0;
  int64_t step = 0;
  std::string version, tag;
  float value = 0;
};

template <class Value>
Value take(std::string_view& bytes) {
  Value value;
  EXPECT_GE(bytes.size(), sizeof value);
  std::memcpy(&value, bytes.data(), sizeof value);
  bytes.remove_prefix(sizeof value);
  return value;
}

uint64_t take_varint(std::string_view& bytes) {
  uint64_t value = 0;
  for (int shift = 0;; shift += 7) {
    const auto byte = take<unsigned char>(bytes);
    value |= static_cast<uint64_t>(byte & 127) << shift;
    if (byte < 128) return value;
  }
}

std::string_view take_bytes(std::string_view& bytes) {
  const auto size = take_varint(bytes);
  const auto inside = bytes.substr(0, size);
  bytes.remove_prefix(size);
  return inside;
}

Event decode(std::string_view bytes) {
  Event event;
  while (!bytes.empty()) {
    switch (take_varint(bytes)) {
      case (1 << 3) | 1:
        event.wall_time = take<double>(bytes);
        break;
      case (2 << 3) | 0:
        event.step = static_cast<int64_t>(take_varint(bytes));
        break;
      case (3 << 3) | 2:
        event.version = take_bytes(bytes);
        break;
      case (5 << 3) | 2: {
        auto summary = take_bytes(bytes);
        EXPECT_EQ(take_varint(summary), (1u << 3) | 2);
        auto value = take_bytes(summary);
        EXPECT_TRUE(summary.empty());
        EXPECT_EQ(take_varint(value), (1u << 3) | 2);
        event.tag = take_bytes(value);
        EXPECT_EQ(take_varint(value), (2u << 3) | 5);
        event.value = take<float>(value);
        EXPECT_TRUE(value.empty());
        break;
      }
      default:
        ADD_FAILURE() << "unknown field";
        return event;
    }
  }
  return event;
}

std::vector<Event> read_events(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  const std::string content{std::istreambuf_iterator<char>(in), {}};
  std::string_view bytes = content;
  std::vector<Event> events;
  while (!bytes.empty()) {
    const auto length_bytes = bytes.substr(0, 8);
    const auto length = take<uint64_t>(bytes);
    EXPECT_EQ(take<uint32_t>(bytes), masked_crc32c(length_bytes));
    EXPECT_GE(bytes.size(), length + 4);
    if (bytes.size() < length + 4) break;
    const auto event = bytes.substr(0, length);
    bytes.remove_prefix(length);
    EXPECT_EQ(take<uint32_t>(bytes), masked_crc32c(event));
    events.push_back(decode(event));
  }
  return events;
}

struct EventsTest : testing::Test {
  std::filesystem::path folder = std::filesystem::temp_directory_path() / text("kinfolk_events_", getpid());
  void TearDown() override { std::filesystem::remove_all(folder); }
};

TEST(Crc32c, KnownValues) {
  // The check value of CRC-32C for "123456789" is e3069283.
  const auto mask = [](uint32_t crc) { return ((crc >> 15) | (crc << 17)) + 0xa282ead8u; };
  EXPECT_EQ(masked_crc32c("123456789"), mask(0xe3069283u));
  EXPECT_EQ(masked_crc32c(std::string(32, '\0')), mask(0x8a9136aau));
}

TEST_F(EventsTest, ScalarsComeBack) {
  EventWriter writer((folder / "run" / "tensorboard").string());
  writer.scalar("loss/train", 5.5, 0);
  writer.scalar("loss/train", 2.25, int64_t(1) << 40);
  writer.scalar(std::string(300, 't'), std::numeric_limits<double>::quiet_NaN(), 300);
  const auto events = read_events(writer.path());
  ASSERT_EQ(events.size(), 4u);
  EXPECT_EQ(events[0].version, "brain.Event:2");
  EXPECT_EQ(events[1].tag, "loss/train");
  EXPECT_EQ(events[1].value, 5.5f);
  EXPECT_EQ(events[1].step, 0);
  EXPECT_EQ(events[2].step, int64_t(1) << 40);
  EXPECT_EQ(events[2].value, 2.25f);
  EXPECT_EQ(events[3].tag, std::string(300, 't'));
  EXPECT_TRUE(std::isnan(events[3].value));
  EXPECT_GE(events[3].wall_time, events[1].wall_time);
  EXPECT_GT(events[1].wall_time, 1.7e9);
}

TEST_F(EventsTest, TwoWritersTwoFiles) {
  EventWriter first(folder.string()), second(folder.string());
  EXPECT_NE(first.path(), second.path());
  EXPECT_NE(first.path().find("tfevents"), std::string::npos);
}

TEST_F(EventsTest, AFileWhereTheFolderShouldBeIsAnError) {
  std::ofstream(folder.string()) << "x";
  EXPECT_THROW(EventWriter((folder / "run").string()), Error);
}

}  // namespace
}  // namespace kinfolk
