"""`retape bench overhead --growth`: the cost of an op in graphs of growing length."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

import retape
from retape import cli
from retape.bench import growth


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(growth, "SIZES", (20, 40))
    monkeypatch.setattr(growth, "ROUNDS", 1)
    monkeypatch.chdir(tmp_path)


def test_every_graph_is_measured_in_every_way_and_size(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["bench", "overhead", "--growth"]) == 0
    rows = json.loads(Path("build/bench/overhead.json").read_text())["result"]["growth"]
    found = {(row["graph"], row["way"], row["ops"]) for row in rows}
    assert found == {(g, w, n) for g in growth.GRAPHS for w in growth.WAYS for n in (20, 40)}
    assert all(row["forward_us"] > 0 and row["backward_us"] > 0 for row in rows)
    shown = capsys.readouterr().out
    assert all(f"{graph}, {way}" in shown for graph in growth.GRAPHS for way in growth.WAYS)


@pytest.mark.parametrize("name", growth.GRAPHS)
@pytest.mark.parametrize("policy", ["full", "cheap"])
def test_graphs_have_the_ops_that_they_are_named_for_and_plain_gradients(
    name: str, policy: str
) -> None:
    def gradient(recompute: bool) -> tuple[torch.Tensor, int]:
        x = torch.ones(growth.FLOATS, requires_grad=True)
        with retape.recompute(policy if recompute else "none") as scope:
            made = growth.GRAPHS[name](x, 40)
        made[-1].sum().backward()
        return x.grad, scope.stats.ops_recorded

    plain, _ = gradient(False)
    recomputed, ops = gradient(True)
    assert torch.equal(plain, recomputed)
    assert ops == 40
