// The first Ctrl-C asks for an end, the second ends at once.
#pragma once

namespace kinfolk {

/// While it lives: the first SIGINT or SIGTERM is only remembered, the second ends the process with that signal. Not
/// nested; signals that were ignored when the program started stay so.
class Interrupt {
 public:
  Interrupt();
  ~Interrupt();
  Interrupt(const Interrupt&) = delete;
  Interrupt& operator=(const Interrupt&) = delete;
  static int signal();  ///< the one that was remembered, or 0
};

}  // namespace kinfolk
