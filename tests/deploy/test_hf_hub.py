"""The deployer `hf_hub`, with the hub's own client against a stand-in."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from evsys_sdk.deploy.deployments import Deployments

from .hub_stand_in import TOKEN, Hub

pytestmark = [
    pytest.mark.clients,
    pytest.mark.skipif(find_spec("datasets") is None, reason="needs the extra `hf`: run make test-clients"),
]


@pytest.fixture
def hub() -> Iterator[Hub]:
    with Hub() as running:
        yield running


def deploy(hub: Hub, base: Path, *params: str, token: str = TOKEN) -> subprocess.CompletedProcess[str]:
    """As a separate process: the client reads the hub's address when it is imported."""
    options = [part for param in (f"base={base}", "repo=team/colours", *params) for part in ("--param", param)]
    env = {**os.environ, "HF_ENDPOINT": hub.url, "HF_TOKEN": token, "HF_HUB_DISABLE_TELEMETRY": "1"}
    env = {name: value for name, value in env.items() if name != "HF_HUB_OFFLINE"}
    return subprocess.run(
        [sys.executable, "-m", "evsys_sdk", "deploy", "routing", "--to", "hf_hub", "--name", "hub", *options],
        env={**env, "HF_HOME": str(base.parent / "hf")},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )


def test_adapter_tokenizer_and_card_are_one_commit(hub: Hub, as_adapter: Path) -> None:
    done = deploy(hub, as_adapter)
    assert done.returncode == 0, done.stderr
    files = hub.repos["team/colours"]
    assert {"README.md", "adapter_config.json", "adapter_model.safetensors", "tokenizer.json"} <= files.keys()
    matches = Deployments.read().find("hub")
    assert matches.location == f"{hub.url}/team/colours"
    assert (matches.facts["repo"], len(hub.commits), hub.private) == ("team/colours", 1, {"team/colours": True})
    built = Path(".evsys/deployments/hub/1/adapter_model.safetensors")
    assert files["adapter_model.safetensors"] == built.read_bytes()
    assert b"## Integrity" in files["README.md"]


def test_what_the_next_one_does_not_have_goes(hub: Hub, as_adapter: Path) -> None:
    assert deploy(hub, as_adapter).returncode == 0
    (as_adapter / "chat_template.jinja").unlink()
    done = deploy(hub, as_adapter)
    assert done.returncode == 0, done.stderr
    files = hub.repos["team/colours"]
    assert "tokenizer.json" in files
    assert "chat_template.jinja" not in files
    assert Deployments.read().find("hub").id == "hub.2"


@pytest.mark.parametrize(("token", "breaks_at", "told"), [("hf_wrong", "", "HF_TOKEN"), (TOKEN, "/commit/", "500")])
def test_what_is_refused_is_not_live(hub: Hub, as_adapter: Path, token: str, breaks_at: str, told: str) -> None:
    hub.breaks_at = breaks_at
    done = deploy(hub, as_adapter, token=token)
    assert done.returncode == 1
    assert told in done.stderr
    assert "Traceback" not in done.stderr
    assert Deployments.read().all == []
    assert not Path(".evsys/deployments/hub/1").exists()
