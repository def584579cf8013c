"""Runs tests against mutants, each test in a forked process of a server that has libtorch loaded."""

import collections
import concurrent.futures
import dataclasses
import os
import pathlib
import queue
import subprocess
from collections.abc import Callable, Iterator

from .mutant import Mutant


@dataclasses.dataclass
class Test:
    name: str
    milliseconds: int
    reached: frozenset[int]


@dataclasses.dataclass
class Result:
    """What became of a mutant: killed (by which test, and how), survived or unreached."""

    status: str
    by: str = ""
    how: str = ""
    tests: int = 0  # how many were run


class Server:
    """One process of mutant_server.cpp."""

    def __init__(self, program: pathlib.Path):
        self.process = subprocess.Popen(
            [str(program)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            # Memory that was freed is filled, so that a mutant that reads it is noticed.
            env={**os.environ, "OMP_NUM_THREADS": "1", "MALLOC_PERTURB_": "165"},
        )  # fmt: skip

    def ask(
        self, mutant: int, seconds: int, test: str, count: int = 0
    ) -> tuple[str, int, list[int]]:
        self.process.stdin.write(f"{mutant} {seconds} {test} {count}\n")
        self.process.stdin.flush()
        answer = self.process.stdout.readline().split()
        if not answer:
            raise RuntimeError(f"[mutants] the server ended while it ran {test}")
        return answer[0], int(answer[1]), [int(word) for word in answer[2:]]

    def close(self) -> None:
        self.process.stdin.close()
        self.process.wait()


class Runner:
    """A few servers, and the tests that they found."""

    def __init__(self, program: pathlib.Path, jobs: int):
        self.program = program
        self.jobs = jobs
        self.servers: queue.Queue[Server] = queue.Queue()
        for _ in range(jobs):
            self.servers.put(Server(program))
        self.tests: list[Test] = []
        self.broken: list[str] = []  # fail without any mutant
        self.kills: dict[str, collections.Counter[str]] = collections.defaultdict(
            collections.Counter
        )

    def close(self) -> None:
        while not self.servers.empty():
            self.servers.get().close()

    def with_server(self, work: Callable[[Server], object]) -> object:
        server = self.servers.get()
        try:
            return work(server)
        finally:
            self.servers.put(server)

    def names(self) -> list[str]:
        listed = subprocess.run(
            [str(self.program), "--gtest_list_tests"], capture_output=True, text=True, check=True
        )
        names, suite = [], ""
        for line in listed.stdout.splitlines():
            name = line.split("#")[0].rstrip()
            if line.startswith("  "):
                names.append(suite + name.strip())
            elif name.endswith("."):
                suite = name
        return [name for name in names if "DISABLED_" not in name]

    def survey(self, count: int) -> Iterator[str]:
        """Runs every test without a mutant: which mutants it reaches, and how long it takes."""

        def one(name: str) -> str:
            verdict, milliseconds, reached = self.with_server(lambda s: s.ask(-1, 300, name, count))
            if verdict == "passed":
                self.tests.append(Test(name, milliseconds, frozenset(reached)))
            else:
                self.broken.append(name)
            return name

        with concurrent.futures.ThreadPoolExecutor(self.jobs) as pool:
            yield from pool.map(one, self.names())

    def judge(self, number: int, mutant: Mutant) -> Result:
        """Runs the tests that reach it, those first that killed its neighbours, then the quickest."""
        neighbours = self.kills[f"{mutant.file} {mutant.function}"]
        tests = [test for test in self.tests if number in test.reached]
        if not tests:
            return Result("unreached")
        tests.sort(key=lambda test: (-neighbours[test.name], test.milliseconds))

        def attempt(server: Server) -> Result:
            for i, test in enumerate(tests):
                seconds = max(5, 10 * test.milliseconds // 1000)
                verdict, _, _ = server.ask(number, seconds, test.name)
                if verdict != "passed":
                    neighbours[test.name] += 1
                    return Result("killed", test.name, verdict, i + 1)
            return Result("survived", tests=len(tests))

        return self.with_server(attempt)

    def all(self, mutants: dict[int, Mutant]) -> Iterator[tuple[int, Result]]:
        with concurrent.futures.ThreadPoolExecutor(self.jobs) as pool:
            work = {pool.submit(self.judge, n, m): n for n, m in mutants.items()}
            for future in concurrent.futures.as_completed(work):
                yield work[future], future.result()
