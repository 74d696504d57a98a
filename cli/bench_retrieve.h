// bench retrieve: how fast a datastore of synthetic keys is searched, and what an approximate search finds.
#pragma once

namespace CLI {
class App;
}

namespace kinfolk {

void add_bench_retrieve(CLI::App& bench);

}  // namespace kinfolk
