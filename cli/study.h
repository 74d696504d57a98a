// A study in the hands of compare: its members planned, and what is applied to them measured.
#pragma once
#include <string>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "cli/examine.h"
#include "kinfolk/eval/report.h"
#include "kinfolk/eval/study.h"
#include "kinfolk/nn/model.h"

namespace kinfolk {

/// The member that an entry of [[members]] means, with the study's [train] and its own settings.
Recipe member_recipe(const Study& study, const Study::Entry& entry);
/// Refuses, before anything is trained, what is applied to the member when it cannot be built or has other parameters.
void check_applied(const Study& study, const Recipe& member, const Size& size);
/// What the study measures at these lengths; `entry` null: of a trained member.
Examination examination(const Study& study, const std::vector<int64_t>& lengths, int64_t tokens,
                        const Study::Entry& entry, bool trained);
/// `last`, its change and, where the reference is known, `against`, of what was found at each length.
void add_paired(Report::Member& member, const std::vector<nlohmann::json>& found, int64_t trained_length,
                const std::vector<nlohmann::json>& reference);

}  // namespace kinfolk
