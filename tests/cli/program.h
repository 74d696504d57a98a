// The program as a child process, in a folder of its own, for tests.
#pragma once
#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

namespace kinfolk {

inline std::string read_bytes(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary);
  std::ostringstream out;
  out << in.rdbuf();
  return out.str();
}

struct ProgramResult {
  int status = -1;  ///< as a shell says it: the exit status, or 128 + the signal
  std::string out, err;
};

/// A child that runs in `folder`; its standard streams are files there.
class ProgramChild {
 public:
  ProgramChild(const std::filesystem::path& folder, std::vector<std::string> words, const std::string& input = "",
               const std::function<void()>& before = {})
      : folder_(folder) {
    const char* program = std::getenv("KINFOLK_PROGRAM");
    words.insert(words.begin(), program ? program : "kinfolk");
    std::ofstream(folder / ".in", std::ios::binary) << input;
    for (const char* stream : {".out", ".err"})
      std::ofstream(folder / stream, std::ios::binary);  // nothing of the last
    pid_ = fork();
    if (pid_ < 0) throw std::runtime_error("no process for a test");
    if (pid_ != 0) return;
    for (const int signal : {SIGINT, SIGTERM, SIGPIPE}) ::signal(signal, SIG_DFL);
    if (chdir(folder.c_str()) != 0) _exit(126);
    dup2(open(".in", O_RDONLY), 0);
    dup2(open(".out", O_WRONLY | O_CREAT | O_TRUNC, 0600), 1);
    dup2(open(".err", O_WRONLY | O_CREAT | O_TRUNC, 0600), 2);
    if (before) before();
    for (int other = 3; other < 64; ++other) close(other);
    std::vector<char*> arguments;
    for (auto& word : words) arguments.push_back(word.data());
    arguments.push_back(nullptr);
    execv(arguments[0], arguments.data());
    _exit(127);
  }
  ~ProgramChild() {
    if (running_) kill(pid_, SIGKILL), finish();
  }
  ProgramChild(const ProgramChild&) = delete;
  ProgramChild& operator=(const ProgramChild&) = delete;

  void send(int signal) const { kill(pid_, signal); }
  /// Waits until the file in the child's folder holds the words; false after 60 s or when the child has ended.
  bool wait_for(const std::string& file, const std::string& words) {
    for (int i = 0; i < 6000; ++i) {
      if (read_bytes(folder_ / file).find(words) != std::string::npos) return true;
      siginfo_t about = {};
      if (waitid(P_PID, static_cast<id_t>(pid_), &about, WEXITED | WNOHANG | WNOWAIT) == 0 && about.si_pid == pid_) {
        return read_bytes(folder_ / file).find(words) != std::string::npos;
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    return false;
  }
  ProgramResult finish() {
    ProgramResult ran;
    int status = 0;
    waitpid(pid_, &status, 0);
    running_ = false;
    ran.status = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    ran.out = read_bytes(folder_ / ".out");
    ran.err = read_bytes(folder_ / ".err");
    return ran;
  }

 private:
  std::filesystem::path folder_;
  pid_t pid_ = -1;
  bool running_ = true;
};

/// A test in an empty folder with a text (`book.txt`) and a very small size (`size.toml`).
class ProgramTest : public testing::Test {
 protected:
  ProgramTest() {
    std::string name = (std::filesystem::temp_directory_path() / "kinfolk-XXXXXX").string();
    if (!mkdtemp(name.data())) throw std::runtime_error("no folder for a test");
    folder = name;
    write("size.toml",
          "depth = 1\nwidth = 16\nheads = 2\nfeed = 32\ncontext = 32\n[train]\nlanes = 4\nlearning_rate = 3e-3\n"
          "tokens = 2560\nlog_every = 5\neval_tokens = 256\n");
    std::string book;
    const char* words[] = {"the ", "cat ", "sat ", "on ", "a ", "mat, ", "and ", "it ", "was ", "good.\n"};
    for (uint32_t state = 1; book.size() < 20000;) book += words[(state = state * 1664525u + 1013904223u) >> 24 & 7];
    for (size_t i = 40; i < book.size(); i += 61) book[i] = '\n';
    write("book.txt", book);
  }
  ~ProgramTest() override {
    std::error_code ignored;
    std::filesystem::remove_all(folder, ignored);
  }

  void write(const std::string& file, const std::string& bytes) const {
    std::filesystem::create_directories((folder / file).parent_path());
    std::ofstream(folder / file, std::ios::binary) << bytes;
  }
  std::string read(const std::string& file) const { return read_bytes(folder / file); }
  bool exists(const std::string& file) const { return std::filesystem::exists(folder / file); }

  ProgramResult run(const std::vector<std::string>& words, const std::string& input = "",
                    const std::function<void()>& before = {}) const {
    return ProgramChild(folder, words, input, before).finish();
  }
  /// `run` with the words that every small training needs.
  static std::vector<std::string> training(const std::string& recipe, const std::string& out,
                                           const std::vector<std::string>& more = {}) {
    std::vector<std::string> words = {"train", recipe, "--data", "book.txt", "--size", "size.toml", "--out", out};
    words.insert(words.end(), more.begin(), more.end());
    return words;
  }
  ProgramResult train(const std::string& recipe, const std::string& out,
                      const std::vector<std::string>& more = {}) const {
    return run(training(recipe, out, more));
  }

  std::filesystem::path folder;
};

/// One line on stderr that says what was expected and what was found, nothing on stdout, and the exit status.
inline void expect_refusal(const ProgramResult& ran, int status, const std::vector<std::string>& parts) {
  EXPECT_EQ(ran.status, status) << ran.err;
  EXPECT_EQ(ran.out, "");
  EXPECT_EQ(ran.err.rfind("kinfolk: ", 0), 0u) << ran.err;
  EXPECT_EQ(std::count(ran.err.begin(), ran.err.end(), '\n'), 1) << ran.err;
  for (const char* needed : {"expected", "found"}) EXPECT_NE(ran.err.find(needed), std::string::npos) << ran.err;
  for (const auto& part : parts) EXPECT_NE(ran.err.find(part), std::string::npos) << part << " in " << ran.err;
}

inline bool has(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

}  // namespace kinfolk
