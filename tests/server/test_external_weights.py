"""External weights: the stock `tinker checkpoint download` fetches them, and only a signed address opens a file."""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from .serving import KEY, Raw, ServerProcess

pytestmark = pytest.mark.tinker


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server with a key, because the addresses must work without it."""
    with ServerProcess(tmp_path_factory.mktemp("state"), env={"EVSYS_SERVE_API_KEY": KEY}) as running:
        yield running


def save_external(raw: Raw, model: str, seq_id: int, name: str) -> str:
    request = {"model_id": model, "seq_id": seq_id, "path": name, "type": "save_weights_external"}
    return raw.result(raw.post("save_weights_external", request).json()["request_id"])["path"]


def addresses(raw: Raw, path: str) -> httpx.Response:
    run_id, _, rest = path.removeprefix("tinker://").partition("/")
    return raw.get(f"training_runs/{run_id}/checkpoints/{rest}/external_weights_urls")


def download(server: ServerProcess, path: str, folder: Path) -> dict[str, str]:
    """Name -> sha256 of what the package's own command line fetched."""
    done = subprocess.run(
        [sys.executable, "-m", "tinker.cli", "checkpoint", "download", path, "--output", str(folder)],
        env={**os.environ, "TINKER_BASE_URL": server.url, "TINKER_API_KEY": KEY, "TINKER_TELEMETRY": "0"},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    [downloaded] = folder.iterdir()
    files = [file for file in downloaded.rglob("*") if file.is_file()]
    return {file.relative_to(downloaded).as_posix(): hashlib.sha256(file.read_bytes()).hexdigest() for file in files}


def test_the_command_line_downloads_a_state_and_external_weights_alike(
    server: ServerProcess, raw: Raw, tmp_path: Path
) -> None:
    model = raw.model()
    raw.loss(raw.forward_backward(model, 1).json()["request_id"])
    state, external = raw.saved(model, 2, "final"), save_external(raw, model, 3, "final")
    assert external == f"tinker://{model}/external_weights/final"
    from_state = download(server, state, tmp_path / "state")
    assert "weights.npz" in from_state
    assert download(server, external, tmp_path / "external") == from_state
    left = [checkpoint["tinker_path"] for checkpoint in raw.get("checkpoints").json()["checkpoints"]]
    assert sorted(file for file in left if model in file) == sorted([state, external]), "the temporary export is gone"


def test_only_the_signed_address_opens_a_file(server: ServerProcess, raw: Raw) -> None:
    path = save_external(raw, raw.model(), 1, "mine")
    urls = addresses(raw, path).json()["urls"]
    url = urls["weights.npz"]
    assert httpx.get(url).status_code == 200, "no key is asked for"
    for wrong in (
        url.replace("weights.npz", "manifest.json"),
        url.replace("mine", "other"),
        url.replace("external_weights/", "external_weights/9"),
        url.replace("weights.npz", "../../../run.json"),
        # letters and digits that no signature has
        re.sub(r"external_weights/\d+-", "external_weights/1-%C3%A4", url),
        re.sub(r"external_weights/\d+-", "external_weights/%C2%B2-", url),
        re.sub(r"external_weights/\d+-", "external_weights/1-%ED%A0%80", url),
    ):
        answer = httpx.get(wrong)
        assert answer.status_code in (401, 403, 404), wrong
    assert httpx.get(f"{server.url}/api/v1/checkpoints").status_code == 401, "all else still needs the key"


def test_what_cannot_be_exported_is_refused_in_words(raw: Raw) -> None:
    model = raw.model()
    body = {"model_id": model, "seq_id": 1, "path": "x", "age_encryption_recipients": ["age1abc"]}
    refused = raw.post("save_weights_external", body)
    assert refused.status_code == 400
    assert "keys that begin with age1" in refused.text or "pip install pyrage" in refused.text
    state = raw.saved(model, 2, "state")
    assert "not external weights" in addresses(raw, state).text
    assert addresses(raw, f"tinker://{model}/external_weights/nobody").status_code == 404
