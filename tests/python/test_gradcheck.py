"""retape.dist.GradCheck and `retape gradcheck`: ranks against one process."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from tests.python import forks, gradcheck_steps
from torch.distributed.elastic.rendezvous import RendezvousParameters

import retape
import retape.dist
import torchrun_retape
from retape import cli
from retape.cli.gradcheck import factory, launch, messages
from retape.cli.gradcheck.messages import RankError, Settings
from torchrun_retape import loopback

STEPS = Path(gradcheck_steps.__file__)
PATIENCE = 300.0  # seconds after which a rank will not come any more


@pytest.fixture
def folder(tmp_path, monkeypatch):
    (tmp_path / "mysteps.py").write_text(STEPS.read_text())
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    yield tmp_path
    sys.modules.pop("mysteps", None)


@pytest.fixture
def gradcheck(folder):
    """The command, torchrun and ranks are forks."""

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        command = ("retape", "gradcheck", *words, "--json", "out.json")
        return forks.nursery().run(*command, output=folder / "command.out")

    return run


def result() -> dict:
    left = json.loads(Path("out.json").read_text())
    assert left["verb"] == "gradcheck"
    return left["result"]


# ---- the command, with ranks ---------------------------------------------------------------------

NO_PICKLE = """import pickle


def refuse(*_, **__):
    raise AssertionError("pickled")

pickle.dump = pickle.dumps = pickle.load = pickle.loads = refuse
pickle.Pickler = type("Pickler", (pickle.Pickler,), {"__init__": refuse})
pickle.Unpickler = type("Unpickler", (pickle.Unpickler,), {"__init__": refuse})
"""


@pytest.fixture
def no_pickle(folder, monkeypatch):
    """In every process that is started."""
    first = folder / "first"
    first.mkdir()
    (first / "sitecustomize.py").write_text(NO_PICKLE)
    monkeypatch.setenv("PYTHONPATH", str(first), prepend=os.pathsep)
    program = [sys.executable, "-c", "import pickle; pickle.dumps(1)"]
    assert b"AssertionError: pickled" in subprocess.run(program, capture_output=True).stderr


def test_a_right_step_is_equal_nothing_listens_beyond_loopback_and_nothing_is_pickled(
    folder, no_pickle, monkeypatch
):
    """Started as a user does: the command, torchrun and ranks are processes of their own."""
    others = [name for _, name in socket.if_nameindex() if name != loopback.interface()]
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", ",".join(others) or "another0")
    words = ["mysteps:right_and_quiet", "--ranks", "2", "--json", "out.json"]
    ended = subprocess.run(
        [sys.executable, "-m", "retape", "gradcheck", *words],
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert result()["kind"] == "equal"
    assert "Running the code of mysteps:right_and_quiet on 2 ranks." in ended.stdout
    assert ended.stderr == ""


def test_a_right_step_is_equal_and_every_mutant_is_noticed(gradcheck, folder):
    ended = gradcheck("mysteps:right", "--ranks", "3", "--html", "out.html")
    assert ended.returncode == 0, ended.stdout + ended.stderr
    found = result()
    assert found["kind"] == "equal"
    assert {row["topology"] for row in found["rows"]} == {"1", "3", "3, ragged", "3, empty"}
    assert {row["dtype"] for row in found["rows"]} == {"float64", "float32"}
    assert {row["terms"] for row in found["rows"]} == {"all", "fit", "penalty"}
    assert max(row["error"] for row in found["rows"] if row["dtype"] == "float64") < 1e-14
    test = found["self_test"]
    assert test["topology"] == "3"
    assert test["killed"] == test["mutants"] == 15
    # Tokens are not the same number on every rank: there the ratio of a local count is no number.
    unknown = {(row["place"], row["mutation"]) for row in test["rows"] if row["predicted"] is None}
    assert unknown == {("count", "local count"), ("count", "drop")}
    assert test["as_predicted"] == test["predicted"] == 13
    said = "self-test at 3: 15 of 15 mutants noticed, 13 of 13 by the ratio that was predicted"
    assert said in ended.stdout
    assert re.search(r"3, ragged +float64 +✓", ended.stdout)
    assert "equal: 40 comparisons in 4 topologies" in ended.stdout
    text = Path("out.html").read_text()
    assert "ranks compute what one process does" in text
    assert str(folder) not in text + Path("out.json").read_text()


def test_an_average_is_different_and_named(gradcheck):
    ended = gradcheck("mysteps:average", "--ranks", "2", "--no-self-test")
    assert ended.returncode == 1, ended.stdout + ended.stderr
    wrong = [row for row in result()["rows"] if row["kind"] == "different"]
    assert {row["topology"] for row in wrong} == {"2", "2, ragged", "2, empty"}
    assert all(row["alpha"] == pytest.approx(0.5) for row in wrong)
    assert all("1 / n_ranks" in row["guesses"] for row in wrong)
    assert "0.5 times the reference: 1 / n_ranks" in ended.stdout


def test_a_term_too_small_to_be_judged_is_vacuous(gradcheck):
    ended = gradcheck("mysteps:too_small", "--ranks", "2", "--no-self-test")
    assert ended.returncode == 6, ended.stdout + ended.stderr
    assert re.search(r"2 +float64 +✓.* ○", ended.stdout)
    assert "it cannot be seen there. Fix: a larger coefficient" in ended.stdout
    assert result()["kind"] == "vacuous"


def test_a_rank_that_raises_is_told_while_others_still_wait(gradcheck):
    ended = gradcheck("mysteps:raises", "--ranks", "2", "--timeout", "250")
    assert ended.returncode == 5, ended.stdout + ended.stderr
    assert "✗ rank 1: ValueError: no <data> & here" in ended.stdout
    assert "rank 0" not in ended.stdout
    assert result()["errors"][0] == {"rank": 1, "kind": "ValueError", "text": "no <data> & here"}


def test_a_step_that_raises_without_rows_is_told_that_ranks_run_out(gradcheck):
    ended = gradcheck("mysteps:cannot_do_without_rows", "--ranks", "2", "--no-self-test")
    assert ended.returncode == 5, ended.stdout + ended.stderr
    told = " ".join(ended.stdout.split())
    assert "rank 1: IndexError: range object index out of range Rank 1 has 0 rows here" in told
    assert "a step that takes 0 rows, or GradCheck(..., empty=False)" in told


def test_a_rank_that_is_killed_is_named_and_those_that_torchrun_ends_then_are_not(gradcheck):
    ended = gradcheck("mysteps:is_killed", "--ranks", "3", "--show-output")
    assert ended.returncode == 5, ended.stdout + ended.stderr
    assert "✗ rank 1: ended by SIGKILL, without an exception" in ended.stdout
    silent = {"rank": 1, "kind": "", "text": "ended by SIGKILL, without an exception"}
    assert [error for error in result()["errors"] if not error["kind"]] == [silent]
    assert result()["errors"][0] == silent
    assert "[rank1]:as far as this" in ended.stderr


@pytest.mark.parametrize(
    ("what", "who", "said"),
    [
        ("is_stopped", 1, "is stopped (SIGSTOP, or a debugger), and others waited for it"),
        ("exits_at_once", 1, "ended with exit code 0, without an exception"),
        ("exits", 1, "0"),  # SystemExit
        ("kills_torchrun", None, "ended by SIGKILL, and ranks with it"),
    ],
)
def test_who_stops_or_leaves_is_named_first(gradcheck, what, who, said):
    ended = gradcheck(f"mysteps:{what}", "--ranks", "2", "--timeout", "2")
    assert ended.returncode == 5, ended.stdout + ended.stderr
    first = result()["errors"][0]
    assert (first["rank"], first["text"]) == (who, said), ended.stdout
    if who is not None and not first["kind"]:
        assert f"The last lines of rank {who}:\nas far as this\n" in ended.stdout


def test_the_first_to_fail_comes_first_and_ranks_that_torchrun_ended_are_not_blamed(tmp_path):
    messages.write_exit_codes(tmp_path, {3: -signal.SIGTERM, 0: -signal.SIGTERM, 1: -6, 2: -9})
    messages.mark_of(tmp_path, 2).write_text("stood here")
    process = subprocess.Popen(["false"])
    process.wait()
    found = launch._silent(process, tmp_path, 4)
    assert [(error.rank, error.text) for error in found] == [
        (3, "ended by SIGTERM, without an exception"),
        (1, "ended by SIGABRT, without an exception"),
    ]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_ranks_end_with_the_command(folder, monkeypatch, number):
    temporary = folder / "temporary"
    temporary.mkdir()
    monkeypatch.setenv("TMPDIR", str(temporary))
    command = ["retape", "gradcheck", "mysteps:waits_for_a_signal", "--ranks", "2"]
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind("alive")
        listener.listen()
        listener.settimeout(PATIENCE)
        process = forks.nursery().start(*command, output=folder / "command.out")
        ranks = [listener.accept()[0] for _ in range(2)]
    for rank in ranks:
        rank.settimeout(PATIENCE)
    assert len({rank.recv(16) for rank in ranks}) == 2
    assert len(list(temporary.glob("retape-*"))) == 1
    os.kill(process, number)
    assert [rank.recv(16) for rank in ranks] == [b"", b""]  # they have let go of it
    ended = forks.nursery().join()
    assert ended == (128 + signal.SIGTERM if number == signal.SIGTERM else -number)
    if number == signal.SIGTERM:
        assert list(temporary.iterdir()) == []


def test_a_mistake_in_the_factory_is_a_mistake_of_the_call(gradcheck):
    ended = gradcheck("mysteps:not_a_check", "--ranks", "2")
    assert ended.returncode == 2
    assert "expected a function that returns a retape.dist.GradCheck, got function" in ended.stderr


# ---- the command, without -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["mysteps", "--ranks", "2"], "expected package.module:factory, got 'mysteps'"),
        (["../x:y", "--ranks", "2"], "expected package.module:factory"),
        (["mysteps:right"], "--ranks"),
        (["mysteps:right", "--ranks", "0"], "--ranks 0: expected at least 1"),
        (["mysteps:right", "--ranks", "2", "--timeout", "0"], "--timeout 0: expected more than 0"),
        (["mysteps:right", "--ranks", "2", "--html", "/proc/no/x.html"], "cannot write"),
    ],
)
def test_what_makes_no_sense_is_refused_before_ranks_start(
    folder, capsys, monkeypatch, words, said
):
    monkeypatch.setattr(launch, "run", lambda *_: pytest.fail("ranks were started"))
    with pytest.raises(SystemExit) as ended:
        cli.main(["gradcheck", *words])
    assert ended.value.code == 2
    assert said in capsys.readouterr().err


def test_factories_are_found_and_misspelt_ones_offered(folder):
    with pytest.raises(retape.UsageError, match="no module 'mystep', here.*Did you mean mysteps"):
        factory.make("mystep:right")
    with pytest.raises(retape.UsageError, match="has no 'rihgt'. Did you mean right"):
        factory.make("mysteps:rihgt")
    with pytest.raises(
        retape.UsageError, match="expected a function that returns a retape.dist.Gr"
    ):
        factory.make("mysteps:not_a_check")
    (folder / "needs.py").write_text("import a_module_that_is_not_there")
    with pytest.raises(ModuleNotFoundError, match="a_module_that_is_not_there"):
        factory.make("needs:x")


def test_messages_are_whole_json_and_the_first_error_comes_first(tmp_path):
    settings = Settings("a:b", 3.0, 7, False)
    messages.write_settings(tmp_path, settings)
    assert messages.read_settings(tmp_path) == settings
    assert messages.read(tmp_path / "report.json") is None
    messages.write_error(tmp_path, RankError(2, "ValueError", "first"))
    messages.write_error(tmp_path, RankError(0, "CollectiveError", "rank 2 is gone", follows=True))
    messages.write_error(tmp_path, RankError(1, "KeyError", "second"))
    for age, rank in enumerate((2, 0, 1)):
        os.utime(tmp_path / f"error.{rank}.json", ns=(age, age))
    assert [error.rank for error in messages.read_errors(tmp_path)] == [2, 1]
    assert not list(tmp_path.glob("*.partial"))


# ---- in this process ------------------------------------------------------------------------------


def gradient(case, scale: float = 1.0) -> dict:
    return {"w": torch.ones(2, dtype=case.dtype) * scale * case.terms["fit"], "frozen": None}


def check_alone(reference=gradient, distributed=gradient, **options) -> retape.dist.GradCheck:
    return retape.dist.GradCheck(
        reference,
        distributed,
        terms={"fit": 2.0},
        rows=4,
        everyone=retape.dist.Group.alone("world"),
        **options,
    )


def test_terms_and_topologies_may_be_given_by_position():
    topologies = {"1": retape.dist.Topology(4, [retape.dist.Pool("ranks", [0])])}
    check = retape.dist.GradCheck(gradient, gradient, {"fit": 2.0}, topologies)
    assert (check.terms, check.topologies, check.rows) == ({"fit": 2.0}, topologies, None)


def test_one_rank_proves_nothing():
    seen = []
    report = check_alone().run(lambda *told: seen.append(told))
    assert (report.kind, report.exit_code, bool(report)) == ("vacuous", 6, False)
    assert [row["dtype"] for row in report.rows] == ["float64", "float32"]
    assert "every pool of every topology has one rank" in report.vacuous[0]
    assert seen[0] == (0, 2, "1; float64; fit")
    assert seen[-1] == (2, 2, "done")
    with pytest.raises(retape.Error, match=r"\[GradCheck\] vacuous"):
        report.raise_if_different()


def test_a_factor_is_fitted():
    report = check_alone(distributed=lambda case: gradient(case, 3.0)).run()
    assert report.kind == "different"
    assert report.rows[0]["alpha"] == 3
    assert "3 times the reference" in str(report)
    assert repr(report) == "<retape.dist.GradReport different: 2 comparisons>"


def test_sparse_gradients_are_those_that_dense_ones_would_be():
    def sparse(case):
        model = torch.nn.Embedding(6, 2, sparse=True, dtype=case.dtype)
        torch.nn.init.ones_(model.weight)
        (case.terms["fit"] * model(torch.tensor([1, 1, 4]))).sum().backward()
        return retape.dist.gradients_of(model)

    def dense(case):
        return {"weight": sparse(case)["weight"].to_dense()}

    for reference, distributed in ((sparse, dense), (dense, sparse), (sparse, sparse)):
        report = check_alone(reference, distributed).run()
        assert {(row["tensor"], row["error"]) for row in report.rows} == {("weight", 0)}


def test_outcomes_have_parameters_and_norms():
    def step(case):
        moved = {"w": torch.ones(2, dtype=case.dtype) - 0.1 * case.steps}
        return retape.dist.Outcome(gradient(case), moved, {"all": 1.5})

    report = check_alone(step, step, steps=2, wire=torch.bfloat16).run()
    assert {row["what"] for row in report.rows} == {"gradient", "parameter", "norm"}
    assert {row["terms"] for row in report.rows} == {"fit", "fit, 2 steps"}
    assert "float32, bfloat16 wire" in {row["dtype"] for row in report.rows}


def test_microbatches_are_ragged_cuts_of_a_ranks_rows():
    seen = []

    def step(case):
        seen.append((case.microbatches, case.cut((2, 11))))
        return gradient(case)

    check_alone(step, step, microbatches=3).run()
    assert seen[0] == (3, [(2, 3), (3, 6), (6, 11)])


def test_microbatches_that_a_step_does_not_ask_for_are_noted():
    def cuts(case):
        case.cut((0, 4))
        return gradient(case)

    said = "microbatches is 3, and no rank has asked for them"
    assert any(said in note for note in check_alone(microbatches=3).run().notes)
    assert any(said in note for note in check_alone(reference=cuts, microbatches=3).run().notes)
    assert "microbatches" not in check_alone(distributed=cuts, microbatches=3).run().explain()
    assert "no microbatches were compared: microbatches is 1." in check_alone().run().notes


def test_exceptions_of_a_step_are_its_own():
    class Own(Exception):
        pass

    def fails(case):
        raise Own("here")

    told = []
    with pytest.raises(Own, match="here") as caught:
        check_alone(distributed=fails).run(raised=told.append)
    assert told == ["Own: here"]
    assert any(entry.name == "fails" for entry in caught.traceback)
    with pytest.raises(Own):
        check_alone(reference=fails).run()


def test_an_interrupt_is_not_told_to_others():
    def interrupted(case):
        raise KeyboardInterrupt

    told = []
    with pytest.raises(KeyboardInterrupt):
        check_alone(distributed=interrupted).run(raised=told.append)
    assert told == []


def test_what_makes_no_sense_is_refused():
    with pytest.raises(retape.UsageError, match="distributed: expected an Outcome .* got NoneType"):
        check_alone(distributed=lambda case: None).run()
    for given, said in (
        ({"w": 1.0}, "distributed: gradient 'w': expected a tensor or None, got float. Fix: "),
        ([torch.ones(2)], "distributed: expected an Outcome or a dict of gradients, got list"),
        ({1: torch.ones(2)}, "distributed: gradient: expected a dict by name, got dict. Fix: "),
        (
            retape.dist.Outcome([]),
            "distributed: gradient: expected a dict by name, got list. Fix: ",
        ),
        (
            retape.dist.Outcome({}, {"w": 1}),
            "distributed: parameter 'w': expected a tensor or None",
        ),
        (
            retape.dist.Outcome({}, norms={"all": torch.ones(2)}),
            "norm 'all': expected a number, got Ten",
        ),
    ):
        with pytest.raises(retape.UsageError, match=said):
            check_alone(distributed=lambda case, given=given: given).run()
    with pytest.raises(retape.UsageError, match="reference: gradient 'w': expected a tensor"):
        check_alone(reference=lambda case: {"w": "1"}).run()
    with pytest.raises(retape.UsageError, match="got neither"):
        retape.dist.GradCheck(gradient, gradient, terms={"fit": 1.0})
    with pytest.raises(retape.UsageError, match="torch.distributed is not initialized"):
        retape.dist.GradCheck(gradient, gradient, terms={"fit": 1.0}, rows=4).run()
    with pytest.raises(retape.UsageError, match='the coefficient of "fit" is 0'):
        check = check_alone()
        check.terms = {"fit": 0.0}
        check.run()


def test_a_model_gives_the_gradients_of_its_parameters():
    model = torch.nn.Linear(2, 1)
    model(torch.ones(1, 2)).sum().backward()
    model.bias.grad = None
    found = retape.dist.gradients_of(model)
    assert found["weight"] is model.weight.grad
    assert found["bias"] is None


def test_numbers_by_row_are_the_same_for_whoever_has_the_row():
    whole = retape.dist.row_uniform(3, "noise", (0, 8), [5], torch.float64)
    part = retape.dist.row_uniform(3, "noise", (2, 6), [5], torch.float64)
    assert torch.equal(whole[2:6], part)
    drawn = [torch.randn(3, generator=retape.dist.row_generator(3, "noise", 4)) for _ in range(2)]
    assert torch.equal(*drawn)


# ---- torchrun ------------------------------------------------------------------------------------


def test_the_handler_of_torchrun_serves_its_store_on_loopback():
    before = gradcheck_steps.listening(os.getpid())
    handler = torchrun_retape.create(RendezvousParameters("retape", "", "run", 1, 1))
    met = handler.next_rendezvous()
    assert (met.rank, met.world_size, handler.use_agent_store) == (0, 1, True)
    port = met.bootstrap_store_info.master_port
    opened = [each for each in gradcheck_steps.listening(os.getpid()) if each not in before]
    assert opened == [f"127.0.0.1:{port}"]
    met.store.set("a", "b")
    assert met.store.get("a") == b"b"


def test_an_interface_that_was_chosen_is_kept_by_torchrun(monkeypatch):
    handler = torchrun_retape.create(RendezvousParameters("retape", "", "run", 1, 1))
    monkeypatch.delenv("GLOO_SOCKET_IFNAME", raising=False)
    for chosen, expected in ((None, loopback.interface()), ("another0", "another0")):
        if chosen:
            monkeypatch.setenv("GLOO_SOCKET_IFNAME", chosen)
        handler.next_rendezvous()
        assert os.environ["GLOO_SOCKET_IFNAME"] == expected


def test_an_attempt_of_torchrun_has_a_store_of_its_own():
    handler = torchrun_retape.create(RendezvousParameters("retape", "", "run", 1, 1))
    first, second = handler.next_rendezvous(), handler.next_rendezvous()
    first.store.set("a", "b")
    assert not second.store.check(["a"])
    ports = {each.bootstrap_store_info.master_port for each in (first, second)}
    assert len(ports) == 2


# In the first attempt ranks disagree, and end; their group is broken, and says so in the store.
RESTARTED = """
import os, sys
import torch, torch.distributed as dist
import retape.dist as rd

dist.init_process_group("gloo")
again = os.environ["TORCHELASTIC_RESTART_COUNT"] == "1"
try:
    total = torch.ones(1)
    rd.Group().sum("x" if again or os.environ["RANK"] == "0" else "y", total)
    # In one piece: ranks share one file, and print, unbuffered, writes word by word.
    sys.stdout.write(f"attempt {os.environ['TORCHELASTIC_RESTART_COUNT']} has {total.item()}\\n")
except rd.CollectiveError:
    os._exit(3)
dist.destroy_process_group()
"""


def test_ranks_that_torchrun_restarts_begin_anew(folder):
    (folder / "restarted.py").write_text(RESTARTED)
    words = ["--rdzv-backend=retape", "--nproc-per-node=2", "--max-restarts=1"]
    words += ["--monitor-interval=0.1", "-m", "restarted"]
    ended = forks.nursery().run("torch.distributed.run", *words, output=folder / "command.out")
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert ended.stdout.splitlines() == ["attempt 1 has 2.0"] * 2


@pytest.mark.parametrize(
    ("endpoint", "nodes", "said"),
    [
        ("example.org:29400", 1, "expected 127.0.0.1, got example.org"),
        ("", 2, "--nnodes=2: expected 1"),
    ],
)
def test_the_handler_of_torchrun_is_for_one_machine(endpoint, nodes, said):
    with pytest.raises(ValueError, match=said):
        torchrun_retape.create(RendezvousParameters("retape", endpoint, "run", 1, nodes))
