"""What a server may be started with; no server needed."""

from __future__ import annotations

from pathlib import Path

import pytest

from evsys_sdk.cli.main import main
from evsys_sdk.errors import ConfigError
from evsys_sdk.server.settings import ServeSettings


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "::1", "127.8.8.8"])
def test_this_machine_needs_no_key(host: str) -> None:
    assert ServeSettings(Path(), ("tiny",), host=host).api_key is None


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.1", "example.org", ""])
def test_other_machines_need_a_key_or_a_clear_word(host: str) -> None:
    with pytest.raises(ConfigError, match="EVSYS_SERVE_API_KEY"):
        ServeSettings(Path(), ("tiny",), host=host)
    assert ServeSettings(Path(), ("tiny",), host=host, api_key="tml-x")
    assert ServeSettings(Path(), ("tiny",), host=host, allow_anyone=True)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--backend", "local"], "--model"),
        (["--backend-param", "hiden=8"], "hidden"),
        (["--backend-param", "hidden=wide"], "hidden"),
        (["--backend-param", "hidden=[1"], "hidden"),
        (["--model", "x", "--backend-param", "hidden"], "KEY=VALUE"),
        (["--model", "x", "--api-key-file", "/nowhere/key"], "/nowhere/key"),
        (["--model", "x", "--port", "70000"], "70000"),
        (["--model", "x", "--host", "0.0.0.0"], "--allow-anyone"),
    ],
)
def test_mistakes_on_the_command_line_are_named(
    options: list[str], said: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert main(["serve", *options, "--state-dir", str(tmp_path)]) == 1
    assert said in capsys.readouterr().err


def test_the_mock_backend_has_its_own_model() -> None:
    assert ServeSettings(Path()).models == ("tiny",)
    assert ServeSettings(Path(), ("a", "b")).models == ("a", "b")


def test_an_empty_key_file_is_no_key(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "key").write_text("\n", "utf-8")
    assert main(["serve", "--model", "x", "--api-key-file", str(tmp_path / "key")]) == 1
    assert "is empty" in capsys.readouterr().err
