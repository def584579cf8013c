"""One build for all mutants: a plain one by CMake, then the woven sources in place of theirs."""

import concurrent.futures
import dataclasses
import json
import pathlib
import re
import shlex
import subprocess

from .mutant import Mutant
from .weave import Woven, weave

HERE = pathlib.Path(__file__).parent
ERROR = re.compile(r"^([^:\n]+):(\d+):(\d+): (?:fatal )?error: (.*)$", re.MULTILINE)


@dataclasses.dataclass
class Plain:
    """The build without mutants: its commands are used again, and all objects but the woven ones."""

    root: pathlib.Path
    folder: pathlib.Path

    def make(self, python: str, jobs: int) -> None:
        if not (self.folder / "build.ninja").exists():
            run_or_show(
                ["cmake", "-S", str(self.root), "-B", str(self.folder), "-G", "Ninja",
                 f"-DPython_EXECUTABLE={python}", "-DRETAPE_BUILD_TESTS=ON",
                 "-DRETAPE_BUILD_PYTHON=OFF", "-DRETAPE_UNITY=OFF", "-DCMAKE_CXX_FLAGS_RELEASE=-O0"]
            )  # fmt: skip
        subprocess.run(["cmake", "--build", str(self.folder), "-j", str(jobs)], check=True)

    @property
    def commands(self) -> pathlib.Path:
        return self.folder / "compile_commands.json"

    def compile_command(self, source: pathlib.Path) -> list[str]:
        for entry in json.loads(self.commands.read_text()):
            if pathlib.Path(entry["file"]) == source:
                return shlex.split(entry["command"])
        raise KeyError(f"[mutants] {source} is not part of the build")

    def link_command(self, target: str) -> str:
        listed = subprocess.run(
            ["ninja", "-C", str(self.folder), "-t", "commands", target],
            capture_output=True, text=True, check=True,
        )  # fmt: skip
        return listed.stdout.strip().splitlines()[-1]


def run_or_show(command: list[str], **options) -> None:
    done = subprocess.run(command, capture_output=True, text=True, **options)
    if done.returncode:
        raise RuntimeError(
            f"[mutants] {shlex.join(command)[:200]} failed:\n{done.stdout}{done.stderr}"
        )


def compile_source(
    plain: Plain, like: pathlib.Path, source: pathlib.Path, target: pathlib.Path
) -> str:
    """Compiles `source` as the build compiles `like`. Returns what the compiler says if it fails."""
    command = plain.compile_command(like)
    command[command.index("-o") + 1] = str(target)
    command[command.index("-c") + 1] = str(source)
    done = subprocess.run(
        [*command, f"-I{HERE}", "-w"], cwd=plain.folder, capture_output=True, text=True
    )
    return done.stderr if done.returncode else ""


@dataclasses.dataclass
class Weaver:
    """Weaves and compiles sources, and leaves out mutants that do not compile."""

    plain: Plain
    folder: pathlib.Path

    def source(self, file: str, numbers: dict[int, Mutant]) -> set[int]:
        """Makes the object of one source. Returns numbers of the mutants that are not in it."""
        original = self.plain.root / file
        path = self.folder / file
        path.parent.mkdir(parents=True, exist_ok=True)
        dropped: set[int] = set()
        while True:
            kept = [(n, m) for n, m in numbers.items() if n not in dropped]
            woven = weave(original.read_text(), kept)
            unchanged = path.exists() and path.read_text() == woven.text
            if unchanged and self.object(file).exists():
                return dropped
            self.object(file).unlink(missing_ok=True)
            path.write_text(woven.text)
            said = compile_source(self.plain, original, path, self.object(file))
            if not said:
                return dropped
            new = culprits(said, path.name, woven) - dropped
            if not new:
                raise RuntimeError(
                    f"[mutants] {file} does not compile with mutants:\n{said[:2000]}"
                )
            dropped |= new

    def object(self, file: str) -> pathlib.Path:
        return self.folder / f"{file}.o"

    def sources(self, mutants: dict[int, Mutant], jobs: int, done=lambda file: None) -> set[int]:
        files: dict[str, dict[int, Mutant]] = {}
        for number, mutant in mutants.items():
            files.setdefault(mutant.file, {})[number] = mutant
        dropped: set[int] = set()
        with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
            work = {pool.submit(self.source, file, its): file for file, its in files.items()}
            for future in concurrent.futures.as_completed(work):
                dropped |= future.result()
                done(work[future])
        self.link(list(files))
        return dropped

    def link(self, files: list[str]) -> None:
        """The library with woven objects and the switch, and the tests with the server's main()."""
        switch, server = self.folder / "mutant_switch.o", self.folder / "mutant_server.o"
        some_source = self.plain.root / files[0]
        some_test = min((self.plain.root / "tests/cpp").glob("*_test.cpp"))
        for like, source, target in [
            (some_source, HERE / "mutant_switch.cpp", switch),
            (some_test, HERE / "mutant_server.cpp", server),
        ]:
            if said := compile_source(self.plain, like, source, target):
                raise RuntimeError(said)
        library = self.plain.link_command("libretape.so")
        for file in files:
            library = library.replace(f"CMakeFiles/retape.dir/{file}.o", str(self.object(file)))
        library = library.replace(" -o libretape.so ", f" -o {self.folder}/libretape.so {switch} ")
        run_or_show(["bash", "-c", library], cwd=self.plain.folder)
        tests = self.plain.link_command("tests/cpp/retape_tests")
        tests = re.sub(
            r" -o \S*retape_tests ", f" -o {self.program} {server} -Wl,-rpath,{self.folder} ", tests
        )
        tests = re.sub(r"(?<=\s)libretape\.so(?=\s)", f"{self.folder}/libretape.so", tests)
        run_or_show(["bash", "-c", tests], cwd=self.plain.folder)

    @property
    def program(self) -> pathlib.Path:
        return self.folder / "retape_tests"


def culprits(said: str, name: str, woven: Woven) -> set[int]:
    """Mutants that the compiler's errors are about."""
    found: set[int] = set()
    for path, line, column, _ in ERROR.findall(said):
        if pathlib.Path(path).name == name:
            found |= set(woven.at(int(line), int(column)))
    return found
