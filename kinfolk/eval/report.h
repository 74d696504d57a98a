// What a comparison found, as plain data, and as one page that needs nothing beside it.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "kinfolk/eval/plot.h"

namespace kinfolk {

/// Numbers that were not measured stay kNothing (not a number) or 0 for counts; the page shows a dash, the JSON null.
/// Qualities are bits per byte: - mean log2 p, divided by the bytes of the text.
struct Report {
  struct CurvePoint {
    double tokens = 0, seconds = 0, bits = kNothing;
  };
  struct LengthPoint {
    int64_t length = 0;  // bytes or tokens read at once in evaluation
    double bits = kNothing, error = kNothing;
    std::string mode;  // "stream" or "blocks of 512"
    // Of a study, where the same bytes end the texts of all lengths:
    double last = kNothing;                               // bits per byte over the last bytes alone
    double change = kNothing, change_error = kNothing;    // of `last` against that at the trained length
    double against = kNothing, against_error = kNothing;  // of `bits` against those of the reference
  };
  struct PositionPoint {
    int64_t position = 0;
    double bits = kNothing, error = kNothing;
  };
  struct SpeedPoint {
    int64_t length = 0;
    double train_tokens_per_second = kNothing, eval_tokens_per_second = kNothing;
    double peak_bytes = kNothing;  // resident memory at its highest
  };
  struct Member {
    std::string name, about;
    int64_t parameters = 0, tokens = 0;           // tokens trained on, one seed
    double seconds = kNothing;                    // of training, one seed
    double flops = kNothing;                      // of training, one seed
    double state_bytes = kNothing;                // of a session, after `state_length` tokens
    std::string state_note;                       // "constant", "grows", "whole sequence"
    std::vector<std::vector<CurvePoint>> curves;  // one a seed
    std::vector<double> final_bits;               // validation, one a seed; not finite = diverged
    double final_error = kNothing;                // standard error over the validation text
    std::vector<LengthPoint> by_length;
    std::vector<PositionPoint> by_position;
    std::vector<SpeedPoint> speed;
    std::string prompt, sample;
    std::string policy;  // how it reads beyond the trained length
    std::vector<std::string> warnings;
    std::string group;    // of a study: the chart that it stands in
    std::string applied;  // the member whose weights it reads with other settings; "" = trained itself
    std::string setting;  // these, as --set takes them
  };
  struct Baseline {
    std::string name;
    double bits = kNothing;
  };
  struct Pattern {
    std::string name, about;
    int64_t rows = 0, columns = 0;
    std::vector<float> weights;  // rows x columns, 0 = unseen, 1 = seen
  };

  std::string title = "kinfolk compare";
  std::string command, created, machine, version;
  std::string data, budget;
  int64_t trained_length = 0;
  int64_t last_bytes = 0;       // of a study: how many end each text; 0 = this is none
  int64_t windows = 0;          // and how many texts there are of each length
  std::string reference;        // the member that `against` is set against
  std::vector<Member> members;  // those that are applied come after those that are trained
  std::vector<Baseline> baselines;
  std::vector<Pattern> patterns;
  std::vector<std::string> warnings;
};

/// One page: verdict, table (click a head to sort), curves, pictures, samples, the command. All text is escaped.
std::string html(const Report& report);

/// Every number above and the verdict, indented; what is not finite is null, what is not UTF-8 is replaced.
std::string json(const Report& report);

}  // namespace kinfolk
