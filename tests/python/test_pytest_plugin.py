"""The pytest plugin: a fixture that fails unless gradients are proved to be the same."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest_plugins = ["pytester"]

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def run(pytester: pytest.Pytester):
    pytester.makeconftest(f"import sys; sys.path.insert(0, {str(ROOT)!r})")

    def run(body: str) -> pytest.RunResult:
        pytester.makepyfile(
            "import retape, torch\n"
            "from tests.python import verify_models as models\n"
            "def test_it(assert_same_gradients):\n"
            + "".join(f"    {line}\n" for line in body.split("\n"))
        )
        options = [] if _is_installed() else ["-p", "pytest_retape"]
        return pytester.runpytest("-p", "no:cacheprovider", *options)

    return run


def _is_installed() -> bool:
    from importlib.metadata import entry_points

    return any(point.value == "pytest_retape" for point in entry_points(group="pytest11"))


def test_passes_where_gradients_are_the_same(run):
    run(
        "verdict = assert_same_gradients(models.Stack(), models.x(grad=True), policy='cheap')\n"
        "assert verdict.ops_replayed > 0"
    ).assert_outcomes(passed=1)


def test_takes_a_step_and_several_policies(run):
    run(
        "full, cheap = assert_same_gradients(models.step, policy=['full', 'cheap'], orders=True)\n"
        "assert full.kind == cheap.kind == 'equal'"
    ).assert_outcomes(passed=1)


def test_fails_with_the_explanation_where_they_differ(run):
    result = run("assert_same_gradients(models.WritesBehindTheBack(), models.x())")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*up.weight*"])
    assert "def check" not in result.stdout.str()  # the test's own failure, not ours


def test_fails_where_nothing_was_proved(run):
    result = run("assert_same_gradients(models.WithDeadParameter(), models.x())")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*unused.weight*"])


def test_one_bad_policy_of_several_fails(run):
    run(
        "assert_same_gradients(models.Stack(), models.x(), policy=['full', 'none'])"
    ).assert_outcomes(failed=1)


def test_no_policy_at_all_is_refused(run):
    result = run("assert_same_gradients(models.WritesBehindTheBack(), models.x(), policy=[])")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*UsageError*expected a policy or several*"])


def test_pytest_starts_without_torch():
    """Whoever has Retape installed pays nothing in test runs that do not use it."""
    import subprocess
    import sys

    program = "import sys, pytest_retape; sys.exit('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], check=False)
    assert done.returncode == 0


def test_the_entry_point_names_the_plugin():
    text = (ROOT / "pyproject.toml").read_text()
    assert '[project.entry-points.pytest11]\nretape = "pytest_retape"' in text
