"""Messages that quote someone else's text: no escape sequence reaches a terminal, and none is endless."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from evsys_sdk.cli.main import main
from evsys_sdk.cli.mcp.commands import ToolError, ToolInvocation
from evsys_sdk.cli.mcp.tools import TOOLS
from evsys_sdk.errors import ConfigError, DataError, clean

ESCAPES = {
    "clears the screen": "\x1b[2J\x1b[H",
    "sets the title": "\x1b]0;owned\x07",
    "C1 sequence": "\x9b2J",
    "goes back over the line": "failed\rOK     ",
    "erases": "\b\b\b",
    "reverses text": "\u202egnp.exe",
    "ends the line": "\u2028pass",
}


@pytest.mark.parametrize("name", ESCAPES)
def test_no_control_character_of_an_error_reaches_the_terminal(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    module = tmp_path / "own.py"
    module.write_text(f"raise ValueError({('bad ' + ESCAPES[name])!r})", encoding="utf-8")
    assert main(["list", "--import", str(module)]) == 1
    err = capsys.readouterr().err
    assert "ValueError: bad" in err
    assert err.replace("\n", "").isprintable(), ascii(err)


def test_the_middle_of_an_endless_message_is_cut() -> None:
    for error in (DataError("a" + "x" * 50_000_000 + "z"), ConfigError("a" + "x" * 50_000_000 + "z")):
        said = str(error)
        assert len(said) < 21_000
        assert "characters left out" in said
        assert (said[0], said.rstrip(".")[-1]) == ("a", "z")
        assert len(json.dumps(error.to_dict())) < 70_000


def test_ordinary_text_stays_as_it_is() -> None:
    text = "config.yaml:3: größer als 5 € 日本\n\tnext line"
    assert clean(text) == text


@pytest.mark.parametrize("tool", ["validate", "launch"])
@pytest.mark.parametrize("path", ["/etc/passwd", "../outside.yaml", "notes.txt", "link.yaml"])
def test_tools_read_no_file_that_is_no_config_of_the_project(
    tool: str, path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project = tmp_path / "project"
    (project / ".evsys").mkdir(parents=True)
    (project / "notes.txt").write_text("hunter2", encoding="utf-8")
    (tmp_path / "outside.yaml").write_text("hunter2", encoding="utf-8")
    (project / "link.yaml").symlink_to(tmp_path / "outside.yaml")
    monkeypatch.chdir(project)
    [run] = [one.run for one in TOOLS if one.name == tool]
    with pytest.raises(ToolError, match="is no YAML file of this project") as caught:
        run(ToolInvocation(), {"config": path, "plan_hash": "x"})
    assert "hunter2" not in str(caught.value)
