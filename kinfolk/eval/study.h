// Studies: members to train alike, what is applied to them afterwards, and at which lengths all are measured.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "kinfolk/core/options.h"

namespace kinfolk {

/// A file with a table [study] beside recipes (recipes/studies/NAME.toml):
///
///   about = "one sentence"
///   [study]                         # see StudySettings
///   [train]                         # settings of training, as in a size; flags of the command come after them
///   [[members]]                     # trained, in this order
///   recipe = "rope"                 # a name or a path
///   set = { "let.window" = 64 }     # as --set
///   [[after]]                       # a trained member, read with other settings: nothing is trained
///   name = "rerope"
///   member = "rope"
///   set = { "layers.0.branches.0.qk" = [{ kind = "rerope", window = 256 }] }
///   [[tasks]]                       # instead of a text and [[after]]: every member learns every task
///   name = "pairs_8"
///   data = "recall:mqar,length=128,pairs=8"
///   chart = "Recall", axis = "pairs", at = 8
///   state = "16Ki"                  # bytes of state, as --state-budget
///   from = "pairs_4"                # goes on from the runs of that task: short examples first
///
/// A study of scaling has a table [scaling] (see ScalingSettings) instead of [study], and [[members]] alone: nothing is
/// trained, a layer of each member is measured at every length.
struct StudySettings {
  std::string size = "tiny", reference;
  int64_t context = 0, windows = 8, last = 0;
  std::vector<int64_t> lengths;
  template <class V>
  void fields(V&& visit) {
    visit("size", size, "name or path of the size of all members", Check{});
    visit("context", context, "trained length, in the place of the size's; 0: that of the size", at_least(0));
    visit("lengths", lengths, "bytes read at once when members are measured; empty: 1, 2, 4 and 8 times the context",
          at_least(1));
    visit("windows", windows, "texts of each length, which end at the same places for all lengths", at_least(1));
    visit("last", last, "bytes at the end of each that are scored by themselves; 0: half of the shortest length",
          at_least(0));
    visit("reference", reference, "name of the entry that the means of all others are set against; empty: none",
          Check{});
  }
};

struct ScalingSettings {
  std::string size = "small", reference, without;
  std::vector<int64_t> lengths = {1024, 2048, 4096, 8192, 16384, 32768, 65536, 131072};
  int64_t fit_from = 4096, rounds = 3;
  double seconds = 5;
  template <class V>
  void fields(V&& visit) {
    visit("size", size, "name or path of the size whose width and heads the layers have", Check{});
    visit("lengths", lengths, "tokens; each is the size's context while it is measured", at_least(1));
    visit("reference", reference, "name of the member that the others are to be cheaper than", Check{});
    visit("without", without, "name of a member that mixes nothing: what grows beyond it has an exponent of its own",
          Check{});
    visit("fit_from", fit_from, "exponents are those of the lengths from this one on", at_least(1));
    visit("rounds", rounds, "in which the members of a length are run in turns, at least", at_least(1));
    visit("seconds", seconds, "of all rounds of a length together, about", between(0, 1e6));
  }
};

struct Study {
  /// One curve of the report: a member that is trained, or one that is applied to a trained member.
  struct Entry {
    std::string name;
    std::string recipe;  ///< of a member that is trained
    std::string member;  ///< of one that is applied: whose checkpoint is read
    std::string group;   ///< the chart it stands in
    std::string mode = "auto";
    bool unlimited = false;  ///< of tasks: `state` does not bind it
    int64_t until = 0;       ///< of scaling: the longest length that it is measured at; 0: all
    Value set;               ///< a table: setting = value
    Place place;
    template <class V>
    void fields(V&& visit) {
      visit("name", name, "of the curve; of a member the recipe's name unless given", Check{});
      visit("recipe", recipe, "name or path of the recipe", Check{});
      visit("member", member, "name of the trained member", Check{});
      visit("group", group, "chart that it stands in", Check{});
      visit("mode", mode, "how it reads beyond the trained length", one_of({"auto", "stream", "blocks"}));
      visit("unlimited", unlimited, "with tasks: a member whose state is left as it is, to set the others against");
      visit("until", until, "with [scaling]: measured up to this length, beyond it extrapolated; 0: measured at all",
            at_least(0));
    }
  };
  /// A task that all members learn, or one that those of another task are asked afterwards: a point of a chart.
  struct Task {
    std::string name, data, chart, axis, state, of, from;
    double at = 0;
    int64_t tokens = 0, lanes = 0;
    Place place;
    template <class V>
    void fields(V&& visit) {
      visit("name", name, "folder of its runs", Check{});
      visit("data", data, "the task, recall:KIND,key=value", Check{});
      visit("chart", chart, "chart that it is a point of", Check{});
      visit("axis", axis, "what the chart has across", Check{});
      visit("at", at, "where the point stands across", Check{});
      visit("state", state, "bytes of state of each member, such as 16Ki; empty: as the recipes are", Check{});
      visit("of", of, "name of the task whose members are asked, nothing is trained; empty: they learn this one",
            Check{});
      visit("from", from, "name of a learned task whose runs this one goes on from; empty: learned from nothing",
            Check{});
      visit("tokens", tokens, "budget in tokens in the place of the study's; 0: the study's", at_least(0));
      visit("lanes", lanes, "examples of a step in the place of the study's; 0: the study's", at_least(0));
    }
  };
  std::string name;  ///< of the file
  std::string file, about;
  StudySettings settings;
  std::optional<ScalingSettings> scaling;  ///< of a study of scaling
  Value train;                             ///< a table of training settings
  std::vector<Entry> members, after;
  std::vector<Task> tasks;
};

/// The path of the study that a name ("extrapolation") or a path means; "" when it is a recipe's or nothing.
std::string study_file(const std::string& name_or_path);
/// Throws UsageError "file:line:column: ..." for what is malformed, unknown, doubled or missing.
Study read_study(const std::string& path);
/// Of a study of scaling, also with lengths from elsewhere: refuses fewer than two fitted lengths of a member.
void check_scaling_lengths(const Study& study);
/// `set` applied to the tree of a recipe; errors name the place in the study.
void apply_settings(Value& tree, const Value& set);
/// The same as what follows --set: `key=value`.
std::vector<std::string> assignments(const Value& set);

}  // namespace kinfolk
