"""Two ranks without a launcher, where rank 0 serves the store in which they meet: how they end, begin anew and are
interrupted."""

from __future__ import annotations

import contextlib
import os
import random
import socket
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

BEGIN = """
import atexit, os, signal, sys
import torch, torch.distributed as dist
import retape, retape.dist as rd

def error_of(call):
    try:
        call()
    except rd.CollectiveError as error:
        return f"{error.ranks} {error}"

def error_of_usage(call):
    try:
        call()
    except retape.UsageError as error:
        return str(error)

dist.init_process_group("gloo")
group = rd.Group()
tensor = torch.ones(2)
"""
ENDS = """
group.sum("a", tensor)
assert tensor.tolist() == [2.0, 2.0]
if os.environ["RANK"] == "0":
    atexit.register(lambda: print("ends", flush=True))  # before retape's own
    sys.exit()
sys.stdin.readline()  # until the test lets it go on
print(error_of(lambda: group.sum("b", tensor)))
dist.destroy_process_group()
"""
BEGINS_ANEW = """
print(error_of(lambda: group.sum(os.environ["RANK"], tensor)))
del group
dist.destroy_process_group()
print("destroyed", flush=True)
sys.stdin.readline()
dist.init_process_group("gloo")
rd.Group().sum("b", tensor)
print(tensor.tolist())
"""
# Groups that a function had, and that are gone when the program ends.
ENDS_WITHOUT_A_GROUP = """
group.sum("a", tensor)
if os.environ["RANK"] == "0":
    del group
    atexit.register(lambda: print("ends", flush=True))
    sys.exit()
sys.stdin.readline()
print(error_of(lambda: group.sum("b", tensor)))
dist.destroy_process_group()
"""
FORKS = """
group.sum("a", tensor)
child = os.fork()
if child == 0:
    print(error_of_usage(lambda: group.sum("b", tensor)), flush=True)
    del group
    sys.exit(3)  # and what is registered for the end of a process runs in it
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
group.sum("b", tensor)
print(tensor.tolist())
"""
IS_INTERRUPTED = """
def interrupt(*_):
    raise KeyboardInterrupt

if os.environ["RANK"] == "1":
    signal.signal(signal.SIGALRM, interrupt)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.01)
        group.sum("a", tensor)
    except KeyboardInterrupt:
        print("interrupted", tensor.tolist())
else:
    sys.stdin.readline()
    print(error_of(lambda: group.sum("a", tensor)), tensor.tolist())
"""

# Rank 2 never makes the call that ranks 0 and 1 wait in.
IS_INTERRUPTED_BESIDE_ONE_THAT_WAITS = """
def interrupt(*_):
    raise KeyboardInterrupt

rank = os.environ["RANK"]
if rank == "1":
    signal.signal(signal.SIGALRM, interrupt)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.01)
        group.sum("a", tensor)
    except KeyboardInterrupt:
        print("interrupted", tensor.tolist(), flush=True)
    if STAYS:
        sys.stdin.readline()
elif rank == "0":
    print(error_of(lambda: group.sum("a", tensor)), tensor.tolist(), flush=True)
    print(error_of(lambda: group.sum("b", tensor)), flush=True)
else:
    sys.stdin.readline()
"""
# As above, in a backward of DDP: where it waits for others, or where it first hears of a signal that came in a kernel.
IS_INTERRUPTED_IN_A_BACKWARD = """
from retape.dist import _ddp

rank = os.environ["RANK"]

def interrupt(*_):
    raise KeyboardInterrupt

def interrupt_who_waits(_, frame):
    while frame and (frame.f_code.co_name, frame.f_globals["__name__"]) != ("result", "concurrent.futures._base"):
        frame = frame.f_back
    if frame:
        signal.setitimer(signal.ITIMER_REAL, 0)
        raise KeyboardInterrupt

if rank == "1" and "WHERE" == "a kernel":
    _ddp._before_accumulation = interrupt
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 2))
hook = rd.SumHook(model)
loss = model(torch.ones(1, 2)).sum()
if rank == "1":
    signal.signal(signal.SIGALRM, interrupt_who_waits)
    signal.setitimer(signal.ITIMER_REAL, 0.01, 0.01)
    try:
        loss.backward()
    except KeyboardInterrupt:
        signal.setitimer(signal.ITIMER_REAL, 0)
        print("interrupted", flush=True)
    sys.stdin.readline()
elif rank == "0":
    print(error_of(loss.backward), flush=True)
else:
    sys.stdin.readline()
"""
# In a step of a check: in a call, between calls, or when it is over and waits for the outcome of others.
IS_INTERRUPTED_IN_A_CHECK = """
rank = os.environ["RANK"]
reached = ""

def interrupt(*_):
    if reached == "WHERE":
        signal.setitimer(signal.ITIMER_REAL, 0)
        raise KeyboardInterrupt

def one(case):
    return {"w": torch.ones(2, dtype=case.dtype)}

def step(case):
    global reached
    if rank == "2":
        sys.stdin.readline()
    if rank == "1" and "WHERE" == "between calls":
        raise KeyboardInterrupt
    if "WHERE" != "the outcome":
        reached = "a call"
        group.sum("in a step", tensor.clone())
    reached = "the outcome"
    return one(case)

check = rd.GradCheck(one, step, terms={"fit": 1.0}, rows=6)
if rank == "1":
    signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, 0.01, 0.01)
    try:
        check.run()
    except KeyboardInterrupt:
        print("interrupted", flush=True)
else:
    print(error_of(check.run), flush=True)
sys.stdin.readline()
"""
LEAVES_A_CALL_IN_WHICH_ONE_WAITS = """
rank = os.environ["RANK"]
if rank == "1":
    pending = group.sum_async("a", tensor)
elif rank == "0":
    print(error_of(lambda: group.sum("a", tensor)), flush=True)
else:
    sys.stdin.readline()
"""

LEAVES_A_CALL = """
if os.environ["RANK"] == "0":
    pending = group.sum_async("a", tensor)  # which nobody waits for, and the other never makes
    raise ValueError("for a reason of its own")
"""
WAITS_FOR_A_HOOK = """
def interrupt(*_):
    raise KeyboardInterrupt

group.barrier("both have groups")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 2), init_sync=False)
if os.environ["RANK"] == "0":
    signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, 0.5)
    try:
        rd.SumHook(model)
    except KeyboardInterrupt:
        print("interrupted", flush=True)
    print(error_of(lambda: rd.SumHook(model)))
else:
    sys.stdin.readline()
"""


def free_port() -> str:
    """One that nobody is given by chance before a rank comes to listen there, seconds later: below those that the
    system deals out."""
    for port in random.sample(range(20000, 32000), 100):
        with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return str(port)
    raise AssertionError("no free port")


def start(program: str, ranks: int = 2) -> list[subprocess.Popen[str]]:
    given = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_port(), "OMP_NUM_THREADS": "1"}
    given["WORLD_SIZE"] = str(ranks)
    return [
        subprocess.Popen(
            [sys.executable, "-c", BEGIN + program],
            env={**os.environ, **given, "RANK": str(rank), "GLOO_SOCKET_IFNAME": "lo"},
            cwd=ROOT,
            text=True,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        for rank in range(ranks)
    ]


@pytest.mark.parametrize("program", [ENDS, ENDS_WITHOUT_A_GROUP])
def test_the_host_of_the_store_ends_with_the_others_and_is_named_at_once_by_one_that_waits_for_it(
    program,
):
    host, other = start(program)
    assert host.stdout.readline() == "ends\n"
    with pytest.raises(
        subprocess.TimeoutExpired
    ):  # it serves; and the other has asked it several times
        host.wait(timeout=1)
    told, noise = other.communicate("go on\n", timeout=60)  # the timeout of a call is half an hour
    assert told.startswith("[0] ")
    assert "rank 0 has ended" in told
    assert (noise, *host.communicate(timeout=60)) == ("", "", "")  # no stack of c10d's
    assert (host.returncode, other.returncode) == (0, 0)


def test_a_host_does_not_wait_for_a_rank_that_was_killed():
    host, other = start(ENDS)
    assert host.stdout.readline() == "ends\n"
    other.kill()
    other.communicate()
    assert host.wait(timeout=50) == 0  # less than the minute for which it would serve
    assert host.communicate() == ("", "")


def test_a_fork_of_a_rank_has_no_groups_and_ends():
    for rank in start(FORKS):
        told, noise = rank.communicate(timeout=60)
        refused, code, total = told.splitlines()
        assert "this process is a fork of the one that made the group" in refused
        assert (code, total, noise) == ("3", "[4.0, 4.0]", "")


def test_a_process_group_that_is_made_anew_knows_nothing_of_the_one_before():
    both = start(BEGINS_ANEW)
    for rank in both:
        assert rank.stdout.readline().startswith('[0, 1] [default_pg] call 1: rank 0 would sum "0"')
        assert rank.stdout.readline() == "destroyed\n"
    for rank in both:  # when the old store is gone: it has the same port
        rank.stdin.write("go on\n")
        rank.stdin.flush()
    assert [rank.communicate(timeout=60) for rank in both] == [("[2.0, 2.0]\n", "")] * 2


def test_who_waits_for_others_hears_signals_and_they_hear_of_its_end():
    other, interrupted = start(IS_INTERRUPTED)
    assert interrupted.communicate(timeout=60) == ("interrupted [1.0, 1.0]\n", "")
    told, noise = other.communicate("go on\n", timeout=60)
    assert told.startswith("[1] ")
    assert told.endswith("[1.0, 1.0]\n")
    assert noise == ""


@pytest.mark.parametrize("stays", [True, False])
def test_who_waits_beside_a_rank_that_is_interrupted_stops_waiting(stays):
    """For a third, which has not come and never will: the timeout of a call is half an hour."""
    program = IS_INTERRUPTED_BESIDE_ONE_THAT_WAITS.replace("STAYS", str(stays))
    waits, interrupted, late = start(program, ranks=3)
    assert interrupted.stdout.readline() == "interrupted [1.0, 1.0]\n"
    told = waits.stdout.readline()
    assert told.startswith("[1] "), told
    assert told.endswith("[1.0, 1.0]\n")
    if stays:
        assert "rank 1 was interrupted, and left the call" in told
    assert waits.stdout.readline().startswith("[1] ")
    for rank in (late, interrupted, waits):
        assert rank.communicate("go on\n", timeout=60) == ("", "")


@pytest.mark.parametrize("where", ["a wait", "a kernel"])
def test_who_waits_in_a_backward_beside_a_rank_that_is_interrupted_stops_waiting(where):
    """The timeout of a call is half an hour, and all of these processes stay."""
    waits, interrupted, late = start(IS_INTERRUPTED_IN_A_BACKWARD.replace("WHERE", where), ranks=3)
    assert interrupted.stdout.readline() == "interrupted\n"
    told = waits.stdout.readline()
    assert told.startswith("[1] "), told
    assert "rank 1 was interrupted, and left the call" in told
    for rank in (late, interrupted, waits):
        assert rank.communicate("go on\n", timeout=60) == ("", "")


@pytest.mark.parametrize("where", ["a call", "between calls", "the outcome"])
def test_a_check_ends_on_all_ranks_when_one_is_interrupted(where):
    """Rank 2 is busy in its step, and learns of it when it comes to a call."""
    waits, interrupted, late = start(IS_INTERRUPTED_IN_A_CHECK.replace("WHERE", where), ranks=3)
    assert interrupted.stdout.readline() == "interrupted\n"
    told = waits.stdout.readline()
    assert told.startswith("[1] "), told
    assert "rank 1 was interrupted, and left the call" in told
    late.stdin.write("go on\n")
    late.stdin.flush()
    assert late.stdout.readline().startswith("[1] ")
    for rank in (late, interrupted, waits):
        assert rank.communicate("go on\n", timeout=60) == ("", "")


def test_who_waits_beside_a_rank_that_came_and_ended_stops_waiting():
    waits, ended, late = start(LEAVES_A_CALL_IN_WHICH_ONE_WAITS, ranks=3)
    told = waits.stdout.readline()
    assert told.startswith("[1] "), told
    for rank in (late, ended, waits):
        assert rank.communicate("go on\n", timeout=60) == ("", "")


def test_a_host_with_a_call_that_nobody_waits_for_ends_when_the_others_have_ended():
    host, other = start(LEAVES_A_CALL)
    assert other.communicate(timeout=60) == ("", "")
    assert (
        "ValueError: for a reason of its own" in host.communicate(timeout=50)[1]
    )  # it would serve for a minute
    assert (host.returncode, other.returncode) == (1, 0)


def test_who_waits_for_others_to_make_a_hook_hears_signals_and_of_their_end():
    waits, other = start(WAITS_FOR_A_HOOK)
    assert waits.stdout.readline() == "interrupted\n"
    assert other.communicate("go on\n", timeout=60) == ("", "")
    told, noise = waits.communicate(timeout=60)  # the timeout of a call is half an hour
    assert told.startswith("[1] ")
    assert "ranks [1] have ended" in told, noise
