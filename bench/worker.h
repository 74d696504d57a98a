// A process of its own that takes one step whenever it is asked: what it holds and peaks at is its alone.
#pragma once
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <functional>

#include "kinfolk/core/errors.h"

namespace kinfolk {

/// `serve(in, out)` runs in the child: for each byte it reads from `in` it takes a step and writes an Answer to `out`;
/// what it returns is the child's exit status.
template <class Answer>
class Worker {
 public:
  explicit Worker(const std::function<int(int in, int out)>& serve) {
    int to[2], from[2];
    if (pipe(to) != 0 || pipe(from) != 0) fail("[bench] expected a pipe; found none");
    id_ = fork();
    if (id_ == 0) {
      close(to[1]), close(from[0]);
      int status = 1;
      try {
        status = serve(to[0], from[1]);
      } catch (const std::exception& error) {
        std::fprintf(stderr, "%s\n", error.what());
      }
      _exit(status);
    }
    close(to[0]), close(from[1]);
    in_ = to[1], out_ = from[0];
  }
  ~Worker() {
    close(in_), close(out_);
    waitpid(id_, nullptr, 0);
  }
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;
  Answer step() const {
    Answer answer;
    const char go = 1;
    if (write(in_, &go, 1) != 1 || read(out_, &answer, sizeof answer) != sizeof answer) {
      fail("[bench] expected an answer of the process that takes the step; found none");
    }
    return answer;
  }

 private:
  pid_t id_;
  int in_, out_;
};

}  // namespace kinfolk
