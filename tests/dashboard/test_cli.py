"""`evsys dashboard` as a process: it says where it is, answers requests with the token, and stops on a signal."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

pytest.importorskip("fastapi")
pytestmark = pytest.mark.dashboard

from evsys_sdk.cli.main import main  # noqa: E402
from tests.history.recorded import write_experiment  # noqa: E402

from .serving import Api  # noqa: E402


def start(folder: Path, *arguments: str) -> tuple[subprocess.Popen[str], dict[str, str]]:
    command = [sys.executable, "-m", "evsys_sdk", "dashboard", "--port", "0", "--json", *arguments]
    process = subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, text=True, env=os.environ.copy())
    assert process.stdout
    return process, json.loads(process.stdout.readline())


def test_the_project_around_the_folder_is_shown_until_it_is_stopped(tmp_path: Path) -> None:
    write_experiment(tmp_path / "outputs", "routing")
    process, about = start(tmp_path)
    try:
        assert about["open"] == f"{about['url']}/#token={about['token']}"
        assert httpx.get(about["url"], trust_env=False).status_code == 200
        with Api(about["url"]) as browser:
            signed_in = browser.post("/session", json={"token": about["token"]}).json()
            assert (signed_in["mode"], signed_in["project_name"]) == ("local", tmp_path.name)
            assert [item["name"] for item in browser.read("/experiments")["items"]] == ["routing"]
    finally:
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=60)


def test_local_mode_is_for_this_machine_only(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["dashboard", "--host", "0.0.0.0"]) == 1
    assert "evsys dashboard serve" in capsys.readouterr().err


def test_a_port_that_is_taken_is_reported_in_a_sentence(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    from evsys_sdk.dashboard.server.run import listen

    with listen("127.0.0.1", 0) as listening:
        assert main(["dashboard", "--port", str(listening.getsockname()[1])]) == 1
    assert "Choose another --port" in capsys.readouterr().err


def test_without_the_extra_the_command_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "fastapi", None)
    assert main(["dashboard", "--port", "0"]) == 1
    assert "dashboard" in capsys.readouterr().err


def test_an_export_is_the_page_with_its_answers_and_nothing_that_was_written_is_executed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    hostile = {"hypothesis": {"claim": "<script>alert(1)</script>"}}
    write_experiment(tmp_path / "outputs", "routing", metadata=hostile)
    page = tmp_path / "page"
    (page / "assets").mkdir(parents=True)
    (page / "index.html").write_text('<script defer src="./assets/app.js"></script>', "utf-8")
    (page / "assets" / "app.js").write_text("", "utf-8")
    monkeypatch.setattr("evsys_sdk.dashboard.export.PAGE", page)
    assert main(["dashboard", "export", "routing", "--json"]) == 0
    parsed = json.loads(capsys.readouterr().out)
    folder = Path(parsed["path"])
    assert parsed["files"] == ["assets/app.js", "data.js", "index.html"]
    scripts = re.findall(r'src="([^"]+)"', (folder / "index.html").read_text("utf-8"))
    assert scripts == ["./data.js", "./assets/app.js"]
    script = (folder / "data.js").read_text("utf-8")
    assert "<" not in script
    data = json.loads(script.removeprefix("globalThis.EVSYS_EXPORT = ").removesuffix(";\n"))
    assert data["answers"][f"/experiments/{data['experiment']}"]["claim"]["text"] == "<script>alert(1)</script>"
    assert main(["dashboard", "export", "routing"]) == 1
    assert "it exists already" in capsys.readouterr().err
