#include "kinfolk/train/interrupt.h"

#include <signal.h>

namespace kinfolk {
namespace {

constexpr int kSignals[] = {SIGINT, SIGTERM};
volatile sig_atomic_t remembered = 0;
struct sigaction before[2];

void remember(int signal) {
  if (remembered == 0) {
    remembered = signal;
    return;
  }
  struct sigaction standard = {};
  standard.sa_handler = SIG_DFL;
  sigaction(signal, &standard, nullptr);
  raise(signal);  // delivered when the handler returns
}

}  // namespace

Interrupt::Interrupt() {
  remembered = 0;
  struct sigaction ours = {};
  ours.sa_handler = remember;
  ours.sa_flags = SA_RESTART;
  sigemptyset(&ours.sa_mask);
  for (int i = 0; i < 2; ++i) {
    sigaction(kSignals[i], nullptr, &before[i]);
    if (before[i].sa_handler != SIG_IGN) sigaction(kSignals[i], &ours, nullptr);
  }
}

Interrupt::~Interrupt() {
  for (int i = 0; i < 2; ++i) sigaction(kSignals[i], &before[i], nullptr);
  remembered = 0;
}

int Interrupt::signal() { return remembered; }

}  // namespace kinfolk
