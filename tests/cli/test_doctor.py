"""`evsys doctor`: lists what is installed; tests a backend once, stores the result and prints what follows."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from evsys_sdk.cli.main import main

ASK = ["doctor", "--backend", "mock", "--model", "tiny"]


def answered(capsys: pytest.CaptureFixture[str], *options: str) -> dict[str, Any]:
    assert main([*ASK, "--json", *options]) == 0
    return json.loads(capsys.readouterr().out)


def test_the_answer_is_found_once_and_remembered(capsys: pytest.CaptureFixture[str]) -> None:
    first = answered(capsys)
    assert first["cached"] is False
    assert first["problems"] == {}
    assert first["facts"]["loss_reduction"] == "sum"
    assert first["facts"]["exact_resume"] is True
    assert Path(first["path"]).parent == Path(".evsys/doctor").resolve()
    again = answered(capsys)
    assert again["cached"] is True
    assert again["facts"] == first["facts"]
    assert again["asked_at"] == first["asked_at"]


def test_it_asks_again_when_told_to_and_says_what_it_does(capsys: pytest.CaptureFixture[str]) -> None:
    stored = Path(answered(capsys)["path"])
    stored.write_text(stored.read_text(encoding="utf-8").replace('"sum"', '"normalised"'), encoding="utf-8")
    assert main(ASK) == 0
    shown = capsys.readouterr()
    assert "Refused: dpo" in shown.out
    assert "--refresh" in shown.err
    assert main([*ASK, "--refresh"]) == 0
    shown = capsys.readouterr()
    assert "probing loss_reduction" in shown.err
    assert "Refused" not in shown.out
    assert "loss_reduction         sum" in shown.out


def test_without_a_backend_it_lists_what_is_installed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor"]) == 0
    page = capsys.readouterr().out
    assert re.search(r"^evsys-sdk \S+, Python 3\.\S+\. Backends: .*\bmock\b", page)
    assert main(["doctor", "--json"]) == 0
    installed = json.loads(capsys.readouterr().out)
    assert set(installed) == {"versions", "backends", "missing"}
    for names in installed["missing"].values():
        assert names[0] in page


def test_bad_input_is_explained(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--backend", "mock"]) == 1
    assert "--model" in capsys.readouterr().err
    assert main(["doctor", "--backend", "mok", "--model", "tiny"]) == 1
    assert "did you mean 'mock'" in capsys.readouterr().err
    assert main([*ASK, "--param", "hidden"]) == 1
    assert "KEY=VALUE" in capsys.readouterr().err
    assert main([*ASK, "--param", "hidden=1"]) == 1
    assert "hidden" in capsys.readouterr().err
    assert main([*ASK, "--base-url", "http://127.0.0.1:9"]) == 1
    assert "base_url" in capsys.readouterr().err


@pytest.mark.skipif(shutil.which("bwrap") is None, reason="bubblewrap is not installed")
def test_it_says_what_sandboxes_promise_on_this_machine(capsys: pytest.CaptureFixture[str]) -> None:
    code = main(["doctor", "--sandbox", "--json"])
    parsed = json.loads(capsys.readouterr().out)
    held = {promise["name"]: promise["held"] for promise in parsed["promises"]}
    if held["a sandbox"]:
        assert (code, parsed["missing"]) == (0, [])
        for name in ("filter on all processes", "no privileges", "no descriptors", "no network", "nothing survives"):
            assert held[name] is True, name
    else:
        assert (code, "a sandbox" in parsed["missing"]) == (1, True)
    assert main(["doctor", "--sandbox"]) == code
    assert "control group" in capsys.readouterr().out


def test_on_a_machine_without_bubblewrap_the_error_names_what_to_install(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert main(["doctor", "--sandbox"]) == 1
    shown = capsys.readouterr()
    assert "apt-get install bubblewrap" in shown.out
    assert "Missing: a sandbox." in shown.err
