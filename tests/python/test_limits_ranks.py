"""Lines of docs/limits.md on ranks: two Gloo ranks on this machine, without a launcher."""

from __future__ import annotations

import signal

from tests.python.test_dist_end import start

WAITS = """
group = rd.Group(timeout=1)
group.barrier("both are there")
print("ready", flush=True)
sys.stdin.readline()
print(error_of(lambda: group.sum("a", tensor)), tensor.tolist(), flush=True)
"""
SUMS_INSIDE = """
for method in ("replay", "rerun"):
    totals = []

    def region(x):
        total = x.detach().sum().reshape(1)
        group.sum("total", total)
        totals.append(total.item())
        return (x * total).sin()

    x = torch.ones(4, requires_grad=True)
    retape.checkpoint(region, x, method=method).sum().backward()
    print(method, totals, x.grad.allclose(8 * torch.tensor(8.0).cos()), flush=True)
"""


def test_a_stopped_rank_that_hosts_the_store_is_named_when_the_timeout_is_over() -> None:
    host, other = start(WAITS)
    try:
        assert host.stdout.readline() == other.stdout.readline() == "ready\n"
        host.send_signal(signal.SIGSTOP)
        other.stdin.write("\n")
        other.stdin.flush()
        told = other.stdout.readline()
    finally:
        for rank in (host, other):
            rank.kill()
            rank.communicate()
    assert told.startswith("[0] "), told
    assert "rank 0 hosts it" in told
    assert told.endswith("[1.0, 1.0]\n")


def test_rerun_makes_the_sums_of_a_region_again_and_replay_does_not() -> None:
    for rank in start(SUMS_INSIDE):
        output, errors = rank.communicate(timeout=120)
        assert output == "replay [8.0] True\nrerun [8.0, 8.0] True\n", errors
