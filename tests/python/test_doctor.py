"""`retape doctor` and what artefacts say about the machine: whole, broken, and nobody's name in it."""

from __future__ import annotations

import contextlib
import getpass
import json
import platform
from pathlib import Path

import pytest
import torch

import retape
from retape import _artefact, _text, cli
from retape._text import Exit
from retape.cli import doctor


@pytest.fixture(autouse=True)
def _in_empty_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "1000")  # texts are looked for in one line


def test_every_check_passes_here_and_is_printed(capsys):
    assert cli.main(["doctor"]) == 0
    out = capsys.readouterr().out
    result = json.loads(Path("build/doctor.json").read_text())["result"]
    names = [check["name"] for check in result["checks"]]
    assert names == [
        *("import", "versions", "CMake package", "C++ ABI", "NDEBUG", "gloo", "hooks", "replay")
    ]
    for check in result["checks"]:
        assert check["code"] == 0
        assert check["found"] in out
    assert result["peers"]["rich"] in out
    assert {"torch_remat", "ai2-olmo-core", "megatron-core"} <= set(result["peers"])
    assert "Everything works." in out


def test_a_broken_check_is_the_exit_code_and_says_the_fix(monkeypatch, capsys):
    broken = doctor.Check("gloo", "no interface", Exit.RANK, "GLOO_SOCKET_IFNAME=lo")
    missing = doctor.Check("CMake package", "missing", fix="pip install .")
    monkeypatch.setattr(doctor, "checks", lambda _: [broken, missing])
    assert cli.main(["doctor"]) == Exit.RANK
    out = capsys.readouterr().out
    assert "✗ gloo: no interface. Fix: GLOO_SOCKET_IFNAME=lo" in out
    assert "– CMake package: missing. Fix: pip install ." in out
    assert "Everything works" not in out


@pytest.mark.parametrize(
    ("given", "code"),
    [
        (("0.1.0", "0.1.0", "2.13.0", "2.13.1+cpu"), Exit.OK),
        (("0.1.0", "0.2.0", "2.13.0", "2.13.0"), Exit.USAGE),
        (("0.1.0", "0.1.0", "2.13.0", "2.14.0"), Exit.USAGE),
    ],
)
def test_versions_must_fit(given, code):
    check = doctor.versions(*given)
    assert check.code is code
    assert bool(check.fix) is bool(code)


def test_a_check_that_raises_is_a_failed_one_and_the_others_go_on(monkeypatch, capsys):
    def fail():
        raise ZeroDivisionError("of all things")

    monkeypatch.setattr(doctor, "gloo", fail)
    monkeypatch.setattr(doctor, "_versions_that_run", fail)
    assert cli.main(["doctor"]) == Exit.USAGE
    out = capsys.readouterr().out
    for name in ("gloo", "versions"):
        assert f"✗ {name}: ZeroDivisionError: of all things. Fix: pip install ." in out
    assert "gradient bit-identical" in out


def test_a_core_that_is_not_what_was_installed_is_told(monkeypatch):
    monkeypatch.setattr(doctor, "_version", lambda name: "0.0.9")
    check = doctor.checks()[1]
    assert (check.name, check.code) == ("versions", Exit.USAGE)
    assert check.found == f"installed as 0.0.9, C++ part {retape.__version__}"


def test_hooks_that_nobody_asks_are_told():
    with retape.eager():  # autograd saves as it always does
        check = doctor.hooks()
    assert check.code is Exit.VACUOUS
    assert check.found == "autograd saves without asking Retape"
    assert doctor.hooks().code is Exit.OK


def test_pythons_own_hooks_that_are_not_called_are_told(monkeypatch):
    unused = contextlib.nullcontext()
    monkeypatch.setattr(torch.autograd.graph, "saved_tensors_hooks", lambda *_: unused)
    check = doctor.hooks()
    assert check.code is Exit.VACUOUS
    assert "Python's own were called 0 times" in check.found


def test_an_abi_that_is_not_torchs_is_told(tmp_path):
    library = tmp_path / "libretape.so"
    assert doctor.cxx11_abi(library, True).code is Exit.USAGE
    library.write_bytes(b"_ZNSt7__cxx1112basic_stringE")
    assert doctor.cxx11_abi(library, True).code is Exit.OK
    assert doctor.cxx11_abi(library, False).code is Exit.USAGE


def test_ndebug_must_be_the_same_on_both_sides():
    asks = 'INTERFACE_COMPILE_DEFINITIONS "NDEBUG"'
    assert doctor.ndebug("-O2 -DNDEBUG", asks).code is Exit.OK
    assert doctor.ndebug("-O0", asks).code is Exit.USAGE
    assert doctor.ndebug("-O2 -DNDEBUG", "").code is Exit.OK


def test_a_torch_without_gloo_is_not_broken(monkeypatch):
    monkeypatch.setattr(torch.distributed, "is_gloo_available", lambda: False)
    check = doctor.gloo()
    assert (check.code, check.symbol) == (Exit.OK, "–")


def test_a_gloo_that_fails_without_a_word_is_told_by_its_kind(monkeypatch):
    def fail(*_):
        raise RuntimeError

    monkeypatch.setattr(torch.distributed, "ProcessGroupGloo", fail)
    check = doctor.gloo()
    assert (check.code, check.found) == (Exit.RANK, "RuntimeError")


def test_the_environment_names_who_multiplies_matrices_and_nobody_else():
    facts = _artefact.environment()
    assert facts["blas"].split()[0] in ("MKL", "OpenBLAS", "Accelerate", "generic")
    assert facts["threads"] == torch.get_num_threads()
    text = json.dumps(facts)
    assert platform.node() not in text
    assert getpass.getuser() not in text.split()


@pytest.mark.parametrize(
    ("typed", "shown"),
    [
        (["demo", "--steps", "3"], "retape demo --steps 3"),
        (["demo", "--output", "/home/me/out"], "retape demo --output out"),
        (["demo", "--json=/home/me/a b.json"], "retape demo '--json=a b.json'"),
        (["demo", "--json", "~/x.json"], "retape demo --json x.json"),
        (["demo", "--json", "../../me/x.json"], "retape demo --json x.json"),
        (["demo", "--json", "build/x.json"], "retape demo --json build/x.json"),
        (["verify", "hf:Llama", "--json", "-"], "retape verify hf:Llama --json -"),
    ],
)
def test_a_command_is_kept_without_folders_of_this_machine(typed, shown):
    assert _artefact.command_line(typed) == shown


def test_artefacts_have_the_command_and_no_folder(tmp_path):
    assert cli.main(["doctor", "--json", str(tmp_path / "d.json")]) == 0
    text = (tmp_path / "d.json").read_text()
    assert json.loads(text)["command"] == "retape doctor --json d.json"
    assert str(tmp_path) not in text


def test_a_name_cannot_act_on_the_terminal():
    assert _text.printable("a\x1b[31m\u202eb\ud800\nc\x00") == "a�[31m�b� c�"
    assert _text.printable("a\n\tb\x07", lines=True) == "a\n\tb�"
    assert _text.printable("名 |*_ é") == "名 |*_ é"
