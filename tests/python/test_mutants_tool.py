"""tools/mutants: which mutants it finds in a function, and that woven sources still compile."""

import pathlib
import subprocess
import sys

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).parents[2]))

from tools.mutants.find import find
from tools.mutants.weave import weave

TOY = """\
bool injected(int fault);
void hit();
#define CHECK(condition) ((condition) ? void() : hit())
template <int N> int times(int x) { return N * x; }

int sum(const int* items, int count, bool negate) {
  constexpr int kMost = 7;
  int total = 0;
  for (int i = 0; i < count; ++i) {
    if (items[i] == 0 || negate) {
      continue;
    }
    total = total + times<3>(items[i]);
  }
  CHECK(total > 5);
  if (injected(4)) {
    total = 9;
  }
  switch (total) {
    case 8:
      return kMost;
  }
  return total;
}
"""
MAIN = """
#include <cstdio>
#include <cstdlib>
int active = -1;
bool retape_mutant(int number) noexcept { return number == active; }
bool injected(int) { return false; }
void hit() {}
int main(int, char** args) {
  active = std::atoi(args[1]);
  const int items[] = {1, 0, 2};
  std::printf("%d", sum(items, 3, false));
}
"""


@pytest.fixture
def mutants():
    return find("toy.cpp", ["-std=c++20"], "toy.cpp", TOY.encode())


def changes(mutants, function):
    return {f"{m.original} => {m.mutated or 'nothing'}" for m in mutants if m.function == function}


def test_operators_conditions_literals_and_statements_are_mutated(mutants):
    assert changes(mutants, "sum") == {
        "0 => 1",
        "i < count => i <= count",
        "i < count => i >= count",
        "items[i] == 0 => items[i] != 0",
        "items[i] == 0 || negate => items[i] == 0 && negate",
        "items[i] == 0 || negate => !(items[i] == 0 || negate)",
        "negate => !(negate)",
        "continue; => nothing",
        "total = total + times<3>(items[i]); => nothing",
        "total + times<3>(items[i]) => total - times<3>(items[i])",
    }


def test_constants_macros_case_labels_and_faults_are_left_alone(mutants):
    lines = {m.line for m in mutants}
    assert not lines & {7, 15, 16, 17, 20, 21}


def test_the_same_change_twice_in_a_function_has_two_names(mutants):
    assert len({m.key for m in mutants}) == len(mutants)


def test_woven_source_is_the_original_until_a_mutant_is_on(mutants, tmp_path):
    woven = weave(TOY, list(enumerate(mutants))).text
    assert woven.count("\n") == TOY.count("\n") + 2
    source = tmp_path / "toy.cpp"
    source.write_text(
        woven.replace('#include "mutant_switch.h"', "bool retape_mutant(int) noexcept;") + MAIN
    )
    program = tmp_path / "toy"
    subprocess.run(["g++", "-std=c++20", "-w", str(source), "-o", str(program)], check=True)

    def printed(number):
        return subprocess.run([str(program), str(number)], capture_output=True, text=True).stdout

    named = {m.key.split(": ", 1)[1]: n for n, m in enumerate(mutants)}
    assert printed(-1) == "9"
    assert printed(named["total + times<3>(items[i]) => total - times<3>(items[i])"]) == "-9"
    assert printed(named["i < count => i >= count"]) == "0"
    assert printed(named["total = total + times<3>(items[i]); => nothing"]) == "0"


def test_an_error_is_traced_to_the_mutant_that_causes_it(mutants):
    woven = weave(TOY, list(enumerate(mutants)))
    number = next(n for n, m in enumerate(mutants) if m.mutated.startswith("total - times"))
    line = mutants[number].line
    column = woven.text.split("\n")[line + 1].index("total - times") + 1
    assert woven.at(line, column) == [number]
