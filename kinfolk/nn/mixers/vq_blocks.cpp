#include "kinfolk/nn/mixers/vq_blocks.h"

#include <algorithm>

namespace kinfolk {
namespace {

using Numbers = std::vector<int64_t>;

Tensor whole_numbers(const Numbers& values, at::IntArrayRef sizes, const Tensor& like) {
  return at::tensor(values, at::kLong).view(sizes).to(like.device());
}

/// A lane's columns block by block, counted from the one before that of its first token.
struct Lane {
  int64_t first = -1, last = -1;  ///< blocks of the first token and of the one to come
  std::vector<Numbers> blocks;
};

}  // namespace

BlockPlan plan_blocks(const Tensor& all_at, const Tensor& all_document, int64_t kept, int64_t R, const Tensor& of) {
  const int64_t B = all_at.size(0), columns = all_at.size(1), L = columns - kept;
  const Tensor at = all_at.to(at::kCPU).contiguous(), document = all_document.to(at::kCPU).contiguous();
  const auto place = [&](int64_t b, int64_t c) { return at.const_data_ptr<int64_t>()[b * columns + c]; };
  const auto number = [&](int64_t b, int64_t c) { return document.const_data_ptr<int64_t>()[b * columns + c]; };
  const Tensor now = of.to(at::kCPU).clone();
  int64_t* current = now.mutable_data_ptr<int64_t>();

  std::vector<Lane> lanes(static_cast<size_t>(B));
  int64_t steps = 0;
  for (int64_t b = 0; b < B; ++b) {
    Lane& lane = lanes[static_cast<size_t>(b)];
    for (int64_t c = kept; c < columns; ++c) {
      if (place(b, c) < 0) continue;
      if (lane.first < 0) lane.first = place(b, c) / R;
      lane.last = (place(b, c) + 1) / R;
    }
    if (lane.first >= 0) steps = std::max(steps, lane.last - lane.first + 1);
  }
  for (int64_t b = 0; b < B; ++b) {
    Lane& lane = lanes[static_cast<size_t>(b)];
    lane.blocks.resize(static_cast<size_t>(steps) + 1);
    for (int64_t c = 0; c < columns && lane.first >= 0; ++c) {
      const int64_t n = place(b, c) < 0 ? -1 : place(b, c) / R - (lane.first - 1);
      if (n >= 0 && n <= steps) lane.blocks[static_cast<size_t>(n)].push_back(c);
    }
  }

  BlockPlan plan;
  Numbers order(static_cast<size_t>(B * L), 0);
  int64_t rows = 0;
  for (int64_t t = 0; t < steps; ++t) {
    BlockStep step;
    if (t > 0) {
      Numbers from(static_cast<size_t>(B * R), 0), taken(static_cast<size_t>(B * R), 0),
          keep(static_cast<size_t>(B), 1);
      bool some = false;
      for (int64_t b = 0; b < B; ++b) {
        const Lane& lane = lanes[static_cast<size_t>(b)];
        const Numbers& own = lane.blocks[static_cast<size_t>(t - 1)];
        if (own.empty() || lane.first + t > lane.last) continue;
        const int64_t newest = number(b, own.back());
        if (newest != current[b]) keep[static_cast<size_t>(b)] = 0, current[b] = newest;
        for (size_t i = 0; i < own.size(); ++i) {
          from[static_cast<size_t>(b * R) + i] = own[i];
          taken[static_cast<size_t>(b * R) + i] = number(b, own[i]) == newest;
        }
        some = true;
      }
      if (some) {
        step.keys = whole_numbers(from, {B, R}, all_at);
        step.taken = whole_numbers(taken, {B, R}, all_at).gt(0);
        step.keep = whole_numbers(keep, {B}, all_at).gt(0);
      }
    }
    size_t most = 0;
    std::vector<Numbers> asking(static_cast<size_t>(B));
    for (int64_t b = 0; b < B; ++b) {
      for (const int64_t c : lanes[static_cast<size_t>(b)].blocks[static_cast<size_t>(t + 1)])
        if (c >= kept) asking[static_cast<size_t>(b)].push_back(c - kept);
      most = std::max(most, asking[static_cast<size_t>(b)].size());
    }
    if (most > 0) {
      const auto n = static_cast<int64_t>(most);
      Numbers from(static_cast<size_t>(B * n), 0), seen(static_cast<size_t>(B * n), 0);
      for (int64_t b = 0; b < B; ++b)
        for (size_t i = 0; i < asking[static_cast<size_t>(b)].size(); ++i) {
          const int64_t c = asking[static_cast<size_t>(b)][i];
          from[static_cast<size_t>(b * n) + i] = c;
          seen[static_cast<size_t>(b * n) + i] = number(b, kept + c) == current[b];
          order[static_cast<size_t>(b * L + c)] = rows + static_cast<int64_t>(i);
        }
      rows += n;
      step.queries = whole_numbers(from, {B, n}, all_at);
      step.seen = whole_numbers(seen, {B, n}, all_at).gt(0);
    }
    plan.steps.push_back(std::move(step));
  }
  plan.of = now.to(all_at.device());
  plan.order = whole_numbers(order, {B, L}, all_at);
  return plan;
}

}  // namespace kinfolk
