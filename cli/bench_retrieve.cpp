#include "cli/bench_retrieve.h"

#include <ATen/Parallel.h>
#include <unistd.h>

#include <chrono>
#include <ctime>
#include <iostream>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "cli/command.h"
#include "kinfolk/core/errors.h"
#include "kinfolk/core/memory.h"
#include "kinfolk/nn/retrieve/search.h"
#include "kinfolk/nn/retrieve/writer.h"
#include "kinfolk/train/progress.h"

namespace kinfolk {
namespace {

namespace fs = std::filesystem;

struct Flags {
  std::string folder, type = "float32";
  std::vector<std::string> searches = {"exact", "graph"};
  int64_t entries = 1000000, width = 64, k = 32, queries = 1024, links = 16, candidates = 200;
  std::string efforts = "32,64,128,256";
  bool json = false;
};

/// CPU seconds of all threads of this program.
double cpu_seconds() { return static_cast<double>(std::clock()) / CLOCKS_PER_SEC; }

/// Keys lie around 4096 centres in a space of 16 dimensions, plus a little in all: as hidden states, near ones exist
/// and the dimensions are not independent.
class Synthetic {
 public:
  explicit Synthetic(int64_t width) : generator_(at::detail::createCPUGenerator(1)) {
    centres_ = at::randn({4096, 16}, generator_, at::kFloat) * 2;
    basis_ = at::randn({16, width}, generator_, at::kFloat) / 4;
  }
  Tensor draw(int64_t n) {
    const Tensor which = at::randint(0, 4096, {n}, generator_, at::kLong);
    const Tensor low = centres_.index_select(0, which) + at::randn({n, 16}, generator_, at::kFloat);
    return at::matmul(low, basis_) + 0.1 * at::randn({n, basis_.size(1)}, generator_, at::kFloat);
  }

 private:
  at::Generator generator_;
  Tensor centres_, basis_;
};

/// A folder that goes away, also after an error.
struct Scratch {
  std::string path;
  ~Scratch() {
    std::error_code error;
    fs::remove_all(path, error);
  }
};

std::shared_ptr<const Datastore> make_store(const Flags& flags, Synthetic& keys, const std::string& folder) {
  StoreManifest about;
  about.model = "synthetic", about.recipe = "none", about.run = "none";
  about.type = flags.type, about.width = flags.width, about.vocabulary = 256;
  DatastoreWriter writer(folder, about);
  writer.begin("synthetic", 0);
  Progress progress("writing keys", 1.0);
  constexpr int64_t kBlock = 65536;
  for (int64_t at = 0; at < flags.entries; at += kBlock) {
    const int64_t n = std::min(kBlock, flags.entries - at);
    writer.append(keys.draw(n), at::arange(at, at + n).remainder(256));
    progress.update(static_cast<double>(at + n) / static_cast<double>(flags.entries));
  }
  progress.finish();
  writer.commit();
  return Datastore::open(folder);
}

struct Row {
  std::string search;
  double seconds = 0, cpu = 0, recall = 1;
};

Row measure_search(const Search& search, const std::string& name, const Tensor& queries, int64_t k,
                   const Tensor& want) {
  search.nearest(queries.slice(0, 0, 16), k);  // pages and caches
  const auto began = std::chrono::steady_clock::now();
  const double cpu = cpu_seconds();
  const Nearest got = search.nearest(queries, k);
  Row row{name, std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count(), cpu_seconds() - cpu};
  if (want.defined()) {
    row.recall = (got.index.unsqueeze(2) == want.unsqueeze(1)).any(2).to(at::kDouble).mean().item<double>();
  }
  return row;
}

void run_retrieve(const Flags& flags) {
  const std::string above = flags.folder.empty() ? fs::temp_directory_path().string() : flags.folder;
  fs::create_directories(above);
  const Scratch scratch{(fs::path(above) / text("kinfolk_bench_retrieve_", getpid())).string()};
  Synthetic keys(flags.width);
  const auto store = make_store(flags, keys, scratch.path);
  const Tensor queries = keys.draw(flags.queries);
  if (!flags.json) {
    std::printf("%s entries of %lld x %s on disk, %s; %lld queries, k = %lld; %d threads\n",
                human_count(static_cast<double>(store->size())).c_str(), static_cast<long long>(flags.width),
                flags.type.c_str(), human_bytes(static_cast<double>(store->bytes())).c_str(),
                static_cast<long long>(flags.queries), static_cast<long long>(flags.k), at::get_num_threads());
  }
  nlohmann::ordered_json rows = nlohmann::ordered_json::array();
  std::printf("%s",
              flags.json ? "" : text("     search  effort    queries/s  CPU us/query  recall@", flags.k, "\n").c_str());
  const auto show = [&](const Row& row, int64_t effort) {
    const auto count = static_cast<double>(flags.queries);
    if (!flags.json) {
      std::printf("%11s %7s %12.1f %13.1f %10.4f\n", row.search.c_str(),
                  effort > 0 ? std::to_string(effort).c_str() : "-", count / row.seconds, 1e6 * row.cpu / count,
                  row.recall);
      std::fflush(stdout);
      return;
    }
    rows.push_back({{"search", row.search},
                    {"effort", effort},
                    {"queries_per_second", count / row.seconds},
                    {"cpu_seconds_per_query", row.cpu / count},
                    {"recall", row.recall}});
  };
  reset_peak();
  const int64_t before = resident_bytes();
  const auto exact = exact_search(store);
  const Tensor want = exact->nearest(queries, flags.k).index;
  show(measure_search(*exact, "exact", queries, flags.k, {}), 0);
  const auto efforts = parse_counts(flags.efforts, "--efforts");
  for (const auto& kind : flags.searches) {
    if (kind == "exact") continue;
    Progress progress(kind, 1.0);
    const auto say = [&](double share) { progress.update(share); };
    const double cpu = cpu_seconds();
    if (kind == "graph") {
      build_graph(store, {flags.links, flags.candidates}, say);
    } else {
      build_ivf_pq(store, {}, say);
    }
    progress.finish();
    const auto file = fs::path(scratch.path) / (kind == "graph" ? "graph.hnsw" : "ivf_pq.faiss");
    if (!flags.json) {
      std::printf("%11s made in %.1f s CPU, %s beside the keys\n", kind.c_str(), cpu_seconds() - cpu,
                  human_bytes(static_cast<double>(fs::file_size(file))).c_str());
    }
    for (const int64_t effort : efforts) {
      show(measure_search(*open_search(kind, store, effort), kind, queries, flags.k, want), effort);
    }
  }
  if (flags.json) {
    std::cout << rows.dump(1) << "\n";
  } else {
    std::printf("peak resident memory %s above that before the first search, pages of the mapped keys included\n",
                human_bytes(static_cast<double>(std::max<int64_t>(0, peak_resident_bytes() - before))).c_str());
  }
}

}  // namespace

void add_bench_retrieve(CLI::App& bench) {
  auto flags = std::make_shared<Flags>();
  auto* command =
      bench.add_subcommand("retrieve", "Searches of a datastore of synthetic keys: queries a second, recall");
  add_count(*command, "--entries", flags->entries, 1, "Keys, such as 10M");
  add_count(*command, "--width", flags->width, 1, "Numbers of a key");
  add_count(*command, "--queries", flags->queries, 1, "Queries, of the same distribution");
  add_count(*command, "--k", flags->k, 1, "Neighbours of a query");
  add_choice(*command, "--type", flags->type, {"float32", "float16", "bfloat16"}, "How keys are stored");
  command->add_option("--search", flags->searches, "exact, graph, ivf_pq: one or several; exact is always measured")
      ->capture_default_str()
      ->type_name("NAME...");
  command->add_option("--efforts", flags->efforts, "Efforts of an approximate search, a list")
      ->capture_default_str()
      ->type_name("LIST");
  add_count(*command, "--links", flags->links, 2, "graph: links of an entry");
  add_count(*command, "--candidates", flags->candidates, 1, "graph: entries looked at to place one");
  command
      ->add_option("--folder", flags->folder, "Where the keys lie meanwhile; without it the system's temporary folder")
      ->type_name("PATH");
  command->add_flag("--json", flags->json, "Print the result as JSON");
  command->footer(
      "The keys are written to disk, searched, and removed.\n"
      "Examples: kinfolk bench retrieve --entries 10M --search exact\n"
      "          kinfolk bench retrieve --entries 1M --search graph --efforts 64,128");
  command->callback([flags] {
    const auto kinds = search_kinds();
    for (const auto& kind : flags->searches) {
      if (std::find(kinds.begin(), kinds.end(), kind) == kinds.end()) open_search(kind, nullptr);  // says what it lacks
    }
    run_retrieve(*flags);
  });
}

}  // namespace kinfolk
