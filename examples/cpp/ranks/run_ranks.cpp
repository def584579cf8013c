#include "launch.h"
#include "store.h"

#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <thread>

namespace ranks {

using retape::Error;
using retape::UsageError;

namespace {

constexpr char kLoopback[] = "127.0.0.1";

// A forked rank: its process, and the pipe through which its error comes. The pipe's end is also
// how its own end is noticed.
struct Child {
  pid_t pid;
  int pipe;
  RankEnd end;
  bool running = true;
};

std::ptrdiff_t threads() {
  return std::distance(std::filesystem::directory_iterator("/proc/self/task"), {});
}

void check_single_thread() {
  // One that was joined a moment ago (an earlier store's) may still be listed.
  const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(1);
  while (threads() > 1 && std::chrono::steady_clock::now() < until) {
    std::this_thread::yield();
  }
  if (const auto tasks = threads(); tasks > 1) {
    throw UsageError(
        "[run_ranks] this process has " + std::to_string(tasks) +
        " threads, and a fork has only one of them. Fix: call it before anything starts threads (a "
        "backward, a "
        "parallel op), or start ranks by torchrun.");
  }
}

[[noreturn]] void be_rank(
    int rank,
    int ranks,
    uint16_t port,
    int pipe,
    const std::function<void(World&)>& body,
    const WorldOptions& options) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  ::signal(SIGPIPE, SIG_IGN);  // writing to a rank that has ended is an error of the write
  ::setenv("RANK", std::to_string(rank).c_str(), 1);
  ::setenv("WORLD_SIZE", std::to_string(ranks).c_str(), 1);
  ::setenv("MASTER_ADDR", kLoopback, 1);
  ::setenv("MASTER_PORT", std::to_string(port).c_str(), 1);
  ::setenv("TORCHELASTIC_USE_AGENT_STORE", "True", 1);
  std::string error;
  bool failed = false;
  try {
    auto world = World::from_environment(options);
    body(world);
  } catch (const std::exception& exception) {
    failed = true;
    error = exception.what();
  }
  retape::dist::leave();
  std::cout.flush();
  std::cerr.flush();
  if (!error.empty() && ::write(pipe, error.data(), error.size()) < 0) {
    std::cerr << "rank " << rank << ": " << error << std::endl;
  }
  // Without destructors of globals: those are the parent's.
  ::_exit(failed ? 1 : 0);
}

std::vector<Child> fork_all(
    int ranks,
    Listener listener,
    const std::function<void(World&)>& body,
    const WorldOptions& options) {
  std::cout.flush();
  std::cerr.flush();
  std::vector<Child> children;
  for (int rank = 0; rank < ranks; ++rank) {
    int ends[2];
    const bool piped = ::pipe(ends) == 0;
    const pid_t pid = piped ? ::fork() : -1;
    if (pid == 0) {
      ::close(ends[0]);
      ::close(listener.fd);
      be_rank(rank, ranks, listener.port, ends[1], body, options);
    }
    if (pid < 0) {
      const std::string why = std::strerror(errno);
      for (const auto& child : children) {
        ::kill(child.pid, SIGKILL);
        ::waitpid(child.pid, nullptr, 0);
        ::close(child.pipe);
      }
      throw Error("[run_ranks] rank " + std::to_string(rank) + " cannot be started: " + why + ".");
    }
    ::close(ends[1]);
    children.push_back({pid, ends[0], {}, true});
  }
  return children;
}

// By a signal, until another lets it go on.
bool is_stopped(const Child& child) {
  std::ifstream stat("/proc/" + std::to_string(child.pid) + "/stat");
  std::string text;
  std::getline(stat, text);
  const auto name_ends = text.rfind(')');  // the name may have spaces
  return name_ends != std::string::npos && text.compare(name_ends, 3, ") T") == 0;
}

// Its pipe has something to read, or has ended.
void listen_to(Child& child) {
  char buffer[4096];
  const auto got = ::read(child.pipe, buffer, sizeof buffer);
  if (got > 0) {
    child.end.error.append(buffer, got);
    return;
  }
  int status = 0;
  ::waitpid(child.pid, &status, 0);
  ::close(child.pipe);
  child.running = false;
  child.end.at = std::chrono::steady_clock::now();
  child.end.signal = WIFSIGNALED(status) ? WTERMSIG(status) : 0;
  child.end.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

}  // namespace

std::vector<RankEnd> run_ranks(
    int ranks, const std::function<void(World&)>& body, const RunOptions& options) {
  using Clock = std::chrono::steady_clock;
  if (ranks < 1) {
    throw UsageError("[run_ranks] " + std::to_string(ranks) + " ranks.");
  }
  check_single_thread();
  const auto listener = listen_at(kLoopback);
  auto children = fork_all(ranks, listener, body, options.world);
  const auto store = serve_store(kLoopback, listener, options.world.timeout);
  if (options.started) {
    std::vector<int> pids;
    for (const auto& child : children) {
      pids.push_back(child.pid);
    }
    options.started(pids);
  }
  auto until = Clock::now() + options.timeout;
  while (true) {
    std::vector<pollfd> polled;
    std::vector<Child*> running;
    for (auto& child : children) {
      if (child.running) {
        polled.push_back({child.pipe, POLLIN, 0});
        running.push_back(&child);
      }
    }
    if (running.empty()) {
      break;
    }
    const auto left =
        std::chrono::duration_cast<std::chrono::milliseconds>(until - Clock::now()).count();
    if (left <= 0 ||
        ::poll(polled.data(), polled.size(), static_cast<int>(std::min<int64_t>(left, 1 << 30))) ==
            0) {
      for (auto* child : running) {
        ::kill(child->pid, SIGKILL);
        listen_to(*child);
      }
      continue;
    }
    for (size_t i = 0; i < polled.size(); ++i) {
      if (polled[i].revents != 0) {
        listen_to(*running[i]);
        if (!running[i]->running && running[i]->end.exit_code != 0) {
          // Those that are stopped would not make use of it.
          const bool waits = std::any_of(children.begin(), children.end(), [](const Child& child) {
            return child.running && !is_stopped(child);
          });
          until = std::min(
              until, Clock::now() + (waits ? options.patience : std::chrono::milliseconds(0)));
        }
      }
    }
  }
  std::vector<RankEnd> ends;
  for (auto& child : children) {
    ends.push_back(std::move(child.end));
  }
  return ends;
}

}  // namespace ranks
