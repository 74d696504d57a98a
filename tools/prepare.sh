# shellcheck shell=bash
# Sourced by run and test: system packages, the Python environment with torch, and build().
#   KINFOLK_PRESET  clang (default), gcc, debug, asan or tsan
#   KINFOLK_JOBS    parallel compilations (default: what cores and free memory allow)
#   VIRTUAL_ENV     used instead of ./.venv when it holds torch
# Everything printed here goes to stderr: stdout belongs to the program.
preset=${KINFOLK_PRESET:-clang}
build_dir=build/$preset

say() { printf '%s\n' "$*" >&2; }
have() { command -v "$1" >/dev/null 2>&1; }

# watched LABEL COMMAND...: runs a silent command, shows its age and last line while it lasts, and its output if it fails.
watched() {
  local label=$1 log start=$SECONDS watcher status=0
  shift
  log=$(mktemp)
  watch_log "$label" "$log" 9>&- &
  watcher=$!
  # shellcheck disable=SC2064  # the values of now are meant
  trap "kill $watcher 2>/dev/null; rm -f '$log'" EXIT
  "$@" >"$log" 2>&1 </dev/null 9>&- || status=$?
  kill "$watcher" 2>/dev/null || true
  wait "$watcher" 2>/dev/null || true
  trap - EXIT
  [ ! -t 2 ] || printf '\r\033[K' >&2
  if [ "$status" -ne 0 ]; then
    say "$label: failed after $((SECONDS - start)) s:"
    tail -n 40 "$log" >&2
  elif [ $((SECONDS - start)) -ge 2 ]; then
    say "$label: $((SECONDS - start)) s"
  fi
  rm -f "$log"
  return "$status"
}

watch_log() {
  local label=$1 log=$2 start=$SECONDS every=15 last
  [ ! -t 2 ] || every=1
  while sleep "$every" >/dev/null 2>&1; do
    last=$(tail -c 400 "$log" 2>/dev/null | tr '\r' '\n' | grep -v '^[[:space:]]*$' | tail -n 1 | cut -c 1-70) || true
    if [ -t 2 ]; then
      printf '\r\033[K%s: %d s  %s' "$label" $((SECONDS - start)) "$last" >&2
    else
      say "$label: $((SECONDS - start)) s  $last"
    fi
  done
}

header() { [ -e "/usr/include/$1" ] || [ -e "/usr/local/include/$1" ]; }

python_ready() {
  local python
  for python in "${VIRTUAL_ENV:-/nowhere}/bin/python" .venv/bin/python; do
    [ ! -x "$python" ] || return 0
  done
  python3 -c 'import venv, ensurepip' >/dev/null 2>&1
}

# Prints the packages that are missing, by their Debian and Ubuntu names, one a line.
missing_packages() {
  if [ "$preset" = gcc ]; then
    have g++ || echo g++
  else
    have clang++ || echo clang
  fi
  have cmake || echo cmake
  have ninja || echo ninja-build
  have ld.lld || echo lld
  have ccache || echo ccache
  have python3 || echo python3
  python_ready || echo python3-venv
  header gtest/gtest.h || echo libgtest-dev
  header CLI/CLI.hpp || echo libcli11-dev
  header toml++/toml.h || echo libtomlplusplus-dev
  header nlohmann/json.hpp || echo nlohmann-json3-dev
  header hnswlib/hnswlib.h || echo libhnswlib-dev
}

# What a present clang may lack: the C++ library of the newest gcc on the machine (clang takes that one's folder, whether or
# not its headers are there), and the runtime of its sanitizers, which some releases package apart.
missing_for_clang() {
  local version sanitizer
  [ "$preset" != gcc ] || return 0
  if ! echo '#include <span>' | clang++ -std=c++20 -fsyntax-only -x c++ - 2>/dev/null; then
    version=$(clang++ -v 2>&1 | sed -n 's|^Selected GCC installation: .*/||p')
    if [ -n "$version" ]; then echo "libstdc++-${version%%.*}-dev"; else echo g++; fi
  fi
  case $preset in
    asan) sanitizer=address ;;
    tsan) sanitizer=thread ;;
    *) return 0 ;;
  esac
  if ! echo 'int main() {}' | clang++ "-fsanitize=$sanitizer" -x c++ - -o /dev/null 2>/dev/null; then
    version=$(clang++ -dumpversion)
    echo "libclang-rt-${version%%.*}-dev"
  fi
}

install_packages() {
  local as_root=()
  [ $# -gt 0 ] || return 0
  if ! have apt-get; then
    say "Missing, by Debian's package names: $*. Install them and start again."
    return 1
  fi
  if [ "$(id -u)" -ne 0 ]; then
    if ! have sudo || ! sudo -n true 2>/dev/null; then
      say "Missing packages. Run: sudo apt-get install $*"
      return 1
    fi
    as_root=(sudo -n)
  fi
  say "Installing packages: $*"
  # Old lists often still serve; a failure to refresh them is shown and the installation tried all the same.
  watched "package lists" "${as_root[@]}" apt-get update || true
  watched "packages" "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive \
    apt-get install -y --no-install-recommends -o DPkg::Lock::Timeout=300 "$@"
}

prepare_system() {
  local packages
  mapfile -t packages < <(missing_packages)
  install_packages "${packages[@]}"
  [ ! -e "$build_dir/build.ninja" ] || return 0
  mapfile -t packages < <(missing_for_clang)
  install_packages "${packages[@]}"
}

# True when the build folder is configured and the torch that it was configured with is still there.
configured() {
  local torch
  [ -e "$build_dir/build.ninja" ] || return 1
  torch=$(grep -om 1 '/[^ ]*/libtorch_cpu\.so' "$build_dir/build.ninja" | head -n 1) || return 1
  [ -e "$torch" ]
}

# CMake makes .venv and installs torch in it (KINFOLK_FETCH_TORCH in the presets). The mark tells a later start that an
# installation was cut short, so that it begins again instead of taking half a torch.
configure() {
  local mark=.venv.unfinished
  configured && return 0
  if [ -e "$mark" ]; then
    say "An earlier installation of torch was cut short: starting it again."
    rm -rf .venv
  fi
  [ -e .venv ] || : >"$mark"
  rm -f "$build_dir/CMakeCache.txt"
  watched "configure (installs torch where there is none)" cmake --preset "$preset" || return 1
  rm -f "$mark"
}

# Cores + 2 as ninja would, but one compilation for each 1.5 GB of free memory at most.
jobs() {
  local cores free
  cores=$(nproc)
  free=$(sed -n 's/^MemAvailable: *\([0-9]*\) kB/\1/p' /proc/meminfo)
  free=$((${free:-99000000} / 1500000))
  cores=$((cores > 2 ? cores + 2 : cores + 1))
  echo $((free < 1 ? 1 : free < cores ? free : cores))
}

# Ninja's lines on stdin: a line at each tenth of the way and at least every 15 s; whatever else it says as it is.
percent() {
  local line status done=0 total=0 share=0 shown=0 spoke=$SECONDS
  while true; do
    status=0
    IFS= read -r -t 15 line || status=$?
    if [ "$status" -eq 0 ]; then
      if [[ $line =~ ^\[([0-9]+)/([0-9]+)\] ]]; then
        done=${BASH_REMATCH[1]} total=${BASH_REMATCH[2]}
      elif [[ $line != "ninja: no work to do."* && $line != "ninja: Entering directory"* ]]; then
        say "$line"
      fi
    elif [ "$status" -le 128 ]; then
      break
    fi
    share=$((total > 0 ? 100 * done / total : 0))
    if [ $((share - shown)) -ge 10 ] || [ $((SECONDS - spoke)) -ge 15 ]; then
      say "build: $share % ($done of $total)"
      shown=$share spoke=$SECONDS
    fi
  done
  [ "$total" -eq 0 ] || [ "$shown" -eq "$share" ] || say "build: $share % ($done of $total)"
}

# build [target...]: configures when needed and builds; one build at a time in a checkout.
build() {
  mkdir -p build
  exec 9>build/.lock
  if ! flock -n 9; then
    say "Waiting for another build in this folder."
    flock 9
  fi
  configure
  local command=(ninja -C "$build_dir" -j "${KINFOLK_JOBS:-$(jobs)}")
  if [ -t 2 ]; then
    "${command[@]}" "$@" >&2 9>&-
  else
    "${command[@]}" "$@" 2>&1 9>&- | percent 9>&-
  fi
  exec 9>&-
}

prepare_system
