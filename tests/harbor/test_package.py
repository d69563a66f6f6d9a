"""What is refused before anything runs. Harbor itself is not needed here."""

import os
from importlib import metadata

import pytest

from evsys_sdk.errors import MissingExtraError, TrainingError
from evsys_sdk.rollouts.harbor import engine
from evsys_sdk.rollouts.harbor.engine import HarborEngine


@pytest.mark.parametrize("found", ["0.24.0", "0.9.1", "0.24.7rc1"])
def test_a_harbor_whose_rewards_can_be_forged_is_refused(monkeypatch: pytest.MonkeyPatch, found: str) -> None:
    monkeypatch.setattr(engine, "version", lambda name: found)
    with pytest.raises(TrainingError, match=rf"harbor {found} .*forge its reward.*harbor>=0.25"):
        HarborEngine()


def test_without_harbor_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> str:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(engine, "version", missing)
    with pytest.raises(MissingExtraError, match=r"evsys-sdk\[harbor\]"):
        HarborEngine()


def test_telemetry_is_off_unless_the_user_wants_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "version", lambda name: "0.25.0")
    monkeypatch.setenv("HARBOR_TELEMETRY", "1")
    monkeypatch.delenv("LITELLM_LOCAL_MODEL_COST_MAP", raising=False)
    engine.require_harbor()
    assert os.environ["HARBOR_TELEMETRY"] == "1"
    assert os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] == "True"
