// Patterns that are no interval of distances: computed view by view, or head by head. Not a public header.
#pragma once
#include <optional>

#include "kinfolk/ops/attend.h"

namespace kinfolk {

/// The arguments of a call of attend.
struct AttendArguments {
  const std::vector<QueryBand>& queries;
  const Tensor &q_raw, &q_at, &q_document;
  const std::vector<Keys>& keys;
  const std::vector<std::vector<KeyBand>>& key_bands;
  const AttendPlan& plan;
};

/// Each view of the pattern is a call of attend with an interval of distances: a band on the tensors as they are; else
/// on the rows of each group of queries and of the keys that it sees, one group a lane. The reads are joined by their
/// normalisers. Nothing: the pattern has too many views, or tiles are cheaper.
std::optional<Read> attend_by_views(const AttendArguments& call);

/// One call of attend for the heads of each pattern of plan.per_head.
Read attend_by_head(const AttendArguments& call);

}  // namespace kinfolk
