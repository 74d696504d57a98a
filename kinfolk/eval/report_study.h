// What the page of a study adds: a chart and a table for each group of members, by evaluation length.
#pragma once
#include <string>

#include "kinfolk/eval/report.h"

namespace kinfolk {

/// The groups of a report, in the order of its members.
std::vector<std::string> groups_of(const Report& report);
/// Bits per byte by evaluation length of one group, as SVG: over the last bytes of each text, or over all of them.
/// Members that others of the group are applied to stand beside them.
std::string group_chart(const Report& report, const std::string& group, bool last);
/// Charts and tables of all groups, as a part of the page.
std::string study_section(const Report& report);
/// The tables alone, as Markdown, with what was applied, the data, the budget and the command.
std::string markdown(const Report& report);

}  // namespace kinfolk
