// main() of the tests in a mutated build: libtorch is loaded once, and each line of input
//
//   <mutant, or -1> <seconds> <test> [<number of mutants>]
//
// runs one test in a forked process, pristine and alone. The seconds are processor time: on a busy
// machine a slow test is not a loop without end. The answer is one line: passed, failed, crashed or
// hung, its milliseconds and, if a number of mutants was given, those that were reached.
#include "mutant_switch.h"

#include <gtest/gtest.h>

#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <sstream>
#include <string>

namespace {

[[noreturn]] void run(int mutant, int seconds, const std::string& test, int count, int answers) {
  const rlimit limit{static_cast<rlim_t>(seconds), static_cast<rlim_t>(seconds + 1)};
  setrlimit(RLIMIT_CPU, &limit);
  const rlimit memory{rlim_t{16} << 30, rlim_t{16} << 30};
  setrlimit(RLIMIT_AS, &memory);
  const rlimit none{0, 0};
  setrlimit(RLIMIT_CORE, &none);
  alarm(static_cast<unsigned>(8 * seconds));  // waits for itself
  std::freopen("/dev/null", "w", stdout);
  if (std::getenv("RETAPE_MUTANT_STDERR") == nullptr) {
    std::freopen("/dev/null", "w", stderr);
  }
  bool* reached = count > 0 ? retape_mutants_reached(count) : nullptr;
  retape_mutant_set(mutant);
  testing::GTEST_FLAG(filter) = test;
  const int failed = RUN_ALL_TESTS();
  const bool ran = testing::UnitTest::GetInstance()->test_to_run_count() == 1;
  std::string text;
  for (int i = 0; i < count; ++i) {
    if (reached[i]) {
      text += " " + std::to_string(i);
    }
  }
  if (write(answers, text.data(), text.size()) < 0) {
    _exit(4);
  }
  _exit(!ran ? 3 : failed);
}

std::string verdict(int status) {
  if (WIFSIGNALED(status)) {
    const int signal = WTERMSIG(status);
    return signal == SIGALRM || signal == SIGXCPU || signal == SIGKILL ? "hung" : "crashed";
  }
  const int code = WEXITSTATUS(status);
  return code == 0 ? "passed" : code == 1 ? "failed" : code == 3 ? "unknown" : "crashed";
}

}  // namespace

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  if (testing::GTEST_FLAG(list_tests)) {
    return RUN_ALL_TESTS();
  }
  for (std::string line; std::getline(std::cin, line);) {
    std::istringstream words(line);
    int mutant = -1, seconds = 60, count = 0;
    std::string test;
    words >> mutant >> seconds >> test >> count;
    int ends[2];
    if (pipe(ends) != 0) {
      return 1;
    }
    const auto start = std::chrono::steady_clock::now();
    const pid_t child = fork();
    if (child == 0) {
      close(ends[0]);
      run(mutant, seconds, test, count, ends[1]);
    }
    close(ends[1]);
    std::string reached;
    char buffer[4096];
    for (ssize_t got; (got = read(ends[0], buffer, sizeof buffer)) > 0;) {
      reached.append(buffer, static_cast<size_t>(got));
    }
    close(ends[0]);
    int status = 0;
    waitpid(child, &status, 0);
    const auto spent = std::chrono::steady_clock::now() - start;
    std::cout << verdict(status) << ' '
              << std::chrono::duration_cast<std::chrono::milliseconds>(spent).count() << reached
              << std::endl;
  }
}
