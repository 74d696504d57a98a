// bench stream: members with a bounded state read a text without end.
#pragma once

namespace CLI {
class App;
}

namespace kinfolk {

void add_bench_stream(CLI::App& bench);

}  // namespace kinfolk
