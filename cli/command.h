// The commands of the program; each lives in its own file and adds itself to the application.
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace kinfolk {

class Model;
struct Recipe;
struct Size;

/// Each adds its sub-command; the command sets `status` when it ran (0 fine, 1 failed, 2 wrong usage).
void add_train(CLI::App& app, int& status);
void add_compare(CLI::App& app, int& status);
void add_eval(CLI::App& app, int& status);
void add_generate(CLI::App& app, int& status);
void add_list(CLI::App& app, int& status);
void add_describe(CLI::App& app, int& status);
void add_explain(CLI::App& app, int& status);
void add_draw(CLI::App& app, int& status);
void add_check(CLI::App& app, int& status);
void add_bench(CLI::App& app, int& status);
void add_datastore(CLI::App& app, int& status);

/// "10M" -> 10000000; k, M, G, T are powers of 1000, Ki, Mi, Gi of 1024; whole, at least `least`. Throws UsageError
/// that names the flag.
int64_t parse_count(const std::string& text, const std::string& flag, int64_t least = 0);
/// "512,1024" -> {512, 1024}, each at least 1.
std::vector<int64_t> parse_counts(const std::string& text, const std::string& flag);
/// A finite number, all of the text.
double parse_number(const std::string& text, const std::string& flag);

/// Options whose values are checked while they are read, with this program's messages; help shows the value they hold.
CLI::Option* add_count(CLI::App& command, const std::string& name, int64_t& value, int64_t least,
                       const std::string& about);
CLI::Option* add_number(CLI::App& command, const std::string& name, double& value, const std::string& about);
CLI::Option* add_choice(CLI::App& command, const std::string& name, std::string& value,
                        const std::vector<std::string>& choices, const std::string& about);
/// `--set key=value`, may be repeated.
CLI::Option* add_set(CLI::App& command, std::vector<std::string>& sets, const std::string& about);

std::string human_count(double value);  ///< 1234567 -> "1.23M"
std::string human_bytes(double value);  ///< 1234567 -> "1.18 MiB"
std::string error_text(double error);   ///< four decimals; "-" where a single window has no spread

/// The recipe with `--set` applied, and a size whose width is solved to `budget` parameters when that is not "".
/// Refuses what this machine's memory cannot hold.
std::pair<Recipe, Size> resolve(const std::string& recipe, const std::string& size,
                                const std::vector<std::string>& sets, const std::string& budget);
/// The same of a recipe at hand; `context` more than 0 stands in the place of the size's.
std::pair<Recipe, Size> resolve(Recipe recipe, const std::string& size, int64_t context,
                                const std::vector<std::string>& sets, const std::string& budget);

/// The checkpoint file that RUN and --checkpoint mean: a run folder's, or the file itself.
std::string checkpoint_file(const std::string& run, const std::string& checkpoint);

/// The command as typed, quoted where a shell needs it: what reports and logs repeat.
extern std::string command_line;
std::string machine_words();  ///< processor, threads, system
std::string now_words();      ///< date and time

/// After `watch_interrupts` the first Ctrl-C is a request to stop (`asked_to_stop`), the second an end at once.
bool asked_to_stop();
void watch_interrupts();

}  // namespace kinfolk
