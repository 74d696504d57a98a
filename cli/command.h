// The commands of the program; each lives in its own file and adds itself to the application.
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace CLI {
class App;
}

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

/// "10M" -> 10000000; k, M, G are powers of 1000, Ki, Mi, Gi of 1024. Throws UsageError that names the flag.
int64_t parse_count(const std::string& text, const std::string& flag);
/// "512,1024" -> {512, 1024}.
std::vector<int64_t> parse_counts(const std::string& text, const std::string& flag);
std::string human_count(double value);  ///< 1234567 -> "1.23M"
std::string human_bytes(double value);  ///< 1234567 -> "1.18 MiB"

/// The recipe with `--set` applied, and a size whose width is solved to `budget` parameters when that is not "".
std::pair<Recipe, Size> resolve(const std::string& recipe, const std::string& size,
                                const std::vector<std::string>& sets, const std::string& budget);

/// The command as typed, quoted where a shell needs it: what reports and logs repeat.
extern std::string command_line;

/// Runs the body with the first Ctrl-C turned into a request to stop (`asked_to_stop`), the second into an end at once.
bool asked_to_stop();
void watch_interrupts();

}  // namespace kinfolk
