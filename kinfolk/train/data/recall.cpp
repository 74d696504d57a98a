#include "kinfolk/train/data/recall.h"

#include <charconv>
#include <numeric>

#include "kinfolk/core/errors.h"
#include "kinfolk/train/settings.h"

namespace kinfolk {
namespace {

constexpr std::string_view kPrefix = "recall:";

/// SplitMix64 (Steele et al. 2014).
class Draws {
 public:
  explicit Draws(uint64_t seed) : x_(seed) {}
  uint64_t next() {
    uint64_t z = x_ += 0x9E3779B97F4A7C15u;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
  }
  int64_t below(int64_t n) {
    return static_cast<int64_t>((static_cast<unsigned __int128>(next()) * static_cast<uint64_t>(n)) >> 64);
  }
  double unit() { return static_cast<double>(next() >> 11) * 0x1p-53; }
  /// m of the items, in the order in which they were drawn.
  std::vector<int64_t> pick(std::vector<int64_t> items, int64_t m) {
    const auto count = static_cast<int64_t>(items.size());
    for (int64_t i = 0; i < m; i++) {
      std::swap(items[static_cast<size_t>(i)], items[static_cast<size_t>(i + below(count - i))]);
    }
    items.resize(static_cast<size_t>(m));
    return items;
  }

 private:
  uint64_t x_;
};
uint64_t mix(uint64_t x) { return Draws(x).next(); }

std::vector<int64_t> numbers(int64_t from, int64_t until) {
  std::vector<int64_t> all(static_cast<size_t>(until - from));
  std::iota(all.begin(), all.end(), from);
  return all;
}

/// The first free slot whose running sum of free weights is above u times their sum.
size_t free_slot(const std::vector<double>& weights, const std::vector<bool>& taken, double u) {
  double sum = 0, running = 0;
  for (size_t s = 0; s < weights.size(); s++) sum += taken[s] ? 0 : weights[s];
  size_t last = 0;
  for (size_t s = 0; s < weights.size(); s++) {
    if (taken[s]) continue;
    running += weights[s];
    last = s;
    if (running > u * sum) return s;
  }
  return last;  // rounding alone leads here
}

RecallExample mqar(const MqarOptions& o, Draws& draws) {
  const auto length = static_cast<size_t>(o.length), pairs = static_cast<size_t>(o.pairs);
  RecallExample e{std::vector<int64_t>(length, 0), std::vector<int64_t>(length, -100)};
  const auto keys = draws.pick(numbers(1, o.vocabulary / 2), o.pairs),
             values = draws.pick(numbers(o.vocabulary / 2, o.vocabulary), o.pairs);
  std::vector<double> weights((length - 2 * pairs) / 2);
  for (size_t s = 0; s < weights.size(); s++) weights[s] = o.power * std::pow(s + 1.0, o.power - 1);
  std::vector<bool> taken(weights.size());
  for (size_t i = 0; i < pairs; i++) {
    e.tokens[2 * i] = keys[i], e.tokens[2 * i + 1] = values[i];
    const size_t slot = free_slot(weights, taken, draws.unit()), at = 2 * pairs + 2 * slot;
    taken[slot] = true;
    e.tokens[at] = keys[i], e.target[at] = values[i];
  }
  if (o.fill)
    for (auto& token : e.tokens)
      if (token == 0) token = draws.below(o.vocabulary);
  return e;
}

RecallExample selective_copy(const SelectiveCopyOptions& o, Draws& draws) {
  const auto body = static_cast<size_t>(o.noise + o.data), data = static_cast<size_t>(o.data);
  RecallExample e{std::vector<int64_t>(body + data, 0), std::vector<int64_t>(body + data, -100)};
  std::vector<int64_t> said(data);
  for (auto& token : said) token = 1 + draws.below(o.vocabulary - 2);
  auto places = draws.pick(numbers(0, o.noise + o.data), o.data);
  std::sort(places.begin(), places.end());
  for (size_t i = 0; i < data; i++) {
    e.tokens[static_cast<size_t>(places[i])] = said[i];
    e.tokens[body + i] = o.vocabulary - 1, e.target[body + i] = said[i];
  }
  return e;
}

RecallExample induction(const InductionOptions& o, Draws& draws) {
  const auto length = static_cast<size_t>(o.length);
  RecallExample e{std::vector<int64_t>(length), std::vector<int64_t>(length, -100)};
  for (auto& token : e.tokens) token = draws.below(o.vocabulary - 1);
  const auto p = static_cast<size_t>(draws.below(o.length - 2));
  e.tokens[p] = e.tokens.back() = o.vocabulary - 1;
  e.target.back() = e.tokens[p + 1];
  return e;
}

RecallExample distance(const DistanceOptions& o, Draws& draws) {
  const int64_t quarter = o.vocabulary / 4;
  const auto length = static_cast<size_t>(4 * o.pairs + o.distance), pairs = static_cast<size_t>(o.pairs);
  RecallExample e{std::vector<int64_t>(length), std::vector<int64_t>(length, -100)};
  for (auto& token : e.tokens) token = draws.below(quarter);
  const auto keys = draws.pick(numbers(quarter, 2 * quarter), o.pairs);
  const auto order = draws.pick(numbers(0, o.pairs), o.pairs);
  int64_t between = o.distance;
  if (o.varied) between = static_cast<int64_t>(std::pow(static_cast<double>(o.distance), draws.unit()));
  const auto asked = length - 2 * pairs, told = asked - static_cast<size_t>(between) - 2 * pairs;
  std::vector<int64_t> values(pairs);
  for (size_t i = 0; i < pairs; i++) {
    values[i] = 2 * quarter + draws.below(2 * quarter);
    e.tokens[told + 2 * i] = keys[i], e.tokens[told + 2 * i + 1] = values[i];
  }
  for (size_t i = 0; i < pairs; i++) {
    const auto one = static_cast<size_t>(order[i]);
    e.tokens[asked + 2 * i] = keys[one], e.tokens[asked + 2 * i + 1] = values[one];
    e.target[asked + 2 * i] = values[one];
  }
  return e;
}

/// "key=value" as a value of the type that the field has.
Value typed(const std::string& path, const Field& field, const std::string& word) {
  const auto wrong = [&] {
    refuse("[data] ", path, ": expected ", field.key, " to be ",
           field.type == "true or false" ? "true or false" : "a number", "; found \"", word, "\"");
  };
  if (field.type == "true or false") {
    if (word != "true" && word != "false") wrong();
    return Value(word == "true");
  }
  const char *begin = word.data(), *end = begin + word.size();
  if (field.type == "integer") {
    int64_t number = 0;
    if (const auto [at, fault] = std::from_chars(begin, end, number); fault != std::errc() || at != end) wrong();
    return Value(number);
  }
  double number = 0;
  if (const auto [at, fault] = std::from_chars(begin, end, number); fault != std::errc() || at != end) wrong();
  return Value(number);
}

template <class Options>
Options options_of(const std::string& path, const std::vector<std::string>& words) {
  Value table{Value::Table{}};
  const auto fields = list_fields<Options>();
  std::vector<std::string> known;
  std::string listed;
  for (const auto& field : fields) known.push_back(field.key), listed += " " + field.key;
  for (const auto& word : words) {
    const size_t equals = word.find('=');
    const std::string key = word.substr(0, equals);
    const auto field = std::find_if(fields.begin(), fields.end(), [&](const Field& f) { return f.key == key; });
    if (field == fields.end() || equals == std::string::npos) {
      refuse("[data] ", path, ": expected options KEY=VALUE; found \"", word, "\"", suggest(key, known),
             "; known:", listed);
    }
    if (table.find(key)) refuse("[data] ", path, ": expected each option once; found ", key, " twice");
    table.set(key, typed(path, *field, word.substr(equals + 1)));
  }
  return read_options<Options>(table, "data");
}

template <class Options>
std::string option_words(Options options) {
  std::string out;
  const Value table = write_options(options);  // named: its entries are read below
  for (const auto& [key, value] : *table.template as<Value::Table>()) out += "," + key + "=" + write_toml_value(value);
  return out;
}

void check(const std::string& path, const RecallTask& task) {
  if (task.kind == "distance" &&
      (task.distance.vocabulary % 4 != 0 || task.distance.vocabulary < 4 * task.distance.pairs)) {
    refuse("[data] ", path, ": expected a vocabulary divisible by 4, at least 4 x ", task.distance.pairs,
           " pairs; found ", task.distance.vocabulary);
  }
  const MqarOptions& o = task.mqar;
  if (task.kind != "mqar") return;
  if (o.length % 2 != 0 || 4 * o.pairs > o.length) {
    refuse("[data] ", path, ": expected an even length of at least 4 x ", o.pairs, " pairs; found ", o.length);
  }
  if (o.vocabulary <= o.length) {
    refuse("[data] ", path, ": expected a vocabulary above the length ", o.length, "; found ", o.vocabulary);
  }
}

}  // namespace

std::string RecallTask::words() const {
  return std::string(kPrefix) + kind +
         (kind == "mqar"             ? option_words(mqar)
          : kind == "selective_copy" ? option_words(copy)
          : kind == "induction"      ? option_words(induction)
                                     : option_words(distance));
}

bool holds_recall(const std::string& path) { return path.starts_with(kPrefix); }

RecallTask read_recall(const std::string& path) {
  std::vector<std::string> words(1);
  for (const char c : path.substr(kPrefix.size())) {
    if (c == ',') {
      words.emplace_back();
    } else {
      words.back() += c;
    }
  }
  RecallTask task;
  task.kind = words[0];
  words.erase(words.begin());
  if (task.kind == "mqar") {
    task.mqar = options_of<MqarOptions>(path, words);
  } else if (task.kind == "selective_copy") {
    task.copy = options_of<SelectiveCopyOptions>(path, words);
  } else if (task.kind == "induction") {
    task.induction = options_of<InductionOptions>(path, words);
  } else if (task.kind == "distance") {
    task.distance = options_of<DistanceOptions>(path, words);
  } else {
    refuse("[data] ", path,
           ": expected recall:mqar, recall:selective_copy, recall:induction or recall:distance; found \"", task.kind,
           "\"", suggest(task.kind, {"mqar", "selective_copy", "induction", "distance"}));
  }
  check(path, task);
  return task;
}

Corpus recall_corpus(const std::string& path) {
  Corpus corpus;
  corpus.recall = read_recall(path);
  corpus.path = corpus.recall.words();
  corpus.split = "drawn from two seeds";
  // A task has no text; what stands for it says which task it is.
  for (Text* text : {&corpus.train, &corpus.valid}) text->bytes.assign(corpus.path.begin(), corpus.path.end());
  return corpus;
}

RecallExample recall_example(const RecallTask& task, uint64_t seed, uint64_t index) {
  Draws draws(mix(mix(seed) + index));
  if (task.kind == "mqar") return mqar(task.mqar, draws);
  if (task.kind == "selective_copy") return selective_copy(task.copy, draws);
  return task.kind == "induction" ? induction(task.induction, draws) : distance(task.distance, draws);
}

uint64_t held_out_seed(const RecallTask& task) { return ~static_cast<uint64_t>(task.seed()); }

Size size_for(Size size, const RecallTask& task) {
  if (!task.any()) return size;
  size.vocabulary = task.vocabulary();
  size.context = task.length();
  return size;
}

Batch RecallExamples::at(int64_t position, int64_t length) const {
  const int64_t L = task_.length(), first = position / L * lanes_;
  if (length != L || position % L != 0) fail("[data] expected whole examples of ", L, " tokens; found ", length);
  Batch batch;
  batch.tokens = at::empty({lanes_, L}, at::kLong);
  Tensor target = at::empty({lanes_, L}, at::kLong);
  for (int64_t lane = 0; lane < lanes_; lane++) {
    auto index = static_cast<uint64_t>(first + lane);
    if (task_.examples() > 0) index %= static_cast<uint64_t>(task_.examples());
    const RecallExample one = recall_example(task_, seed_, index);
    std::copy(one.tokens.begin(), one.tokens.end(), batch.tokens.mutable_data_ptr<int64_t>() + lane * L);
    std::copy(one.target.begin(), one.target.end(), target.mutable_data_ptr<int64_t>() + lane * L);
  }
  batch.facts["target"] = target;
  return batch;
}

std::unique_ptr<Source> recall_source(const RecallTask& task, const TrainSettings& settings) {
  if (settings.length != task.length()) {
    refuse("[train.length] expected ", task.length(), ", the tokens of an example; found ", settings.length);
  }
  if (settings.tokens > 0 && settings.tokens < settings.lanes * settings.length) {
    refuse("[train.tokens] expected at least the ", settings.lanes * settings.length, " tokens of one step; found ",
           settings.tokens);
  }
  return std::make_unique<RecallExamples>(task, static_cast<uint64_t>(task.seed()), settings.lanes);
}

}  // namespace kinfolk
