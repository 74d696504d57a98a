// bench approximate: how far cheaper forms of attention are from the exact one of a trained run.
#pragma once

namespace CLI {
class App;
}

namespace kinfolk {

void add_bench_approximate(CLI::App& bench);

}  // namespace kinfolk
