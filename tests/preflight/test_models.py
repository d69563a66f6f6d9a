"""What can be known about a model on this machine before it is loaded."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType
from unittest.mock import Mock

import pytest

from evsys_sdk import RunConfig
from evsys_sdk.experiment.preflight import models
from evsys_sdk.experiment.preflight.models import model_problems

from .project import SFT, change


def problems(name: str, backend: dict[str, object], **model: str) -> list[str]:
    edits = {"run.model": {"name": name, **model}, "run.backend": backend}
    run = RunConfig.model_validate(change(SFT, edits)["run"])
    return [str(problem) for problem in model_problems(run, "run")]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A model of 3 GB on a machine of 2 GB, without a GPU."""
    (tmp_path / "large").mkdir()
    (tmp_path / "large" / "config.json").write_text("{}", "utf-8")
    with (tmp_path / "large" / "model.safetensors").open("wb") as file:
        file.truncate(3 * 1024**3)  # takes no room on disk
    monkeypatch.setattr(models, "_total_memory", lambda: 2 * 1024**3)
    return tmp_path


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_weights_larger_than_all_memory_are_refused_unless_a_gpu_takes_them(folder: Path, device: str) -> None:
    found = problems("./large", {"kind": "local", "params": {"device": device}})
    if device == "cuda":
        assert found == []
    else:
        [said] = found
        assert "its weights take at least 3.0 GB, and this machine has 2.0 GB of memory (got './large')" in said
        assert "Choose a smaller model" in said


def test_a_name_on_the_hub_is_for_the_hub_to_know(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    assert problems("some/model", {"kind": "local"}) == []


def test_without_the_hub_only_what_was_fetched_can_be_had(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_HUB_CACHE", str(folder / "hub"))
    [said] = problems("some/model", {"kind": "local"})
    assert "not on this machine, and HF_HUB_OFFLINE forbids to fetch it" in said
    (folder / "hub" / "models--some--model").mkdir(parents=True)
    assert problems("some/model", {"kind": "local"}) == []


def test_a_name_of_one_word_is_looked_up_in_the_cache(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_HUB_CACHE", str(folder / "hub"))
    monkeypatch.setenv("EVSYS_CACHE_DIR", str(folder / "cache"))
    assert "HF_HUB_OFFLINE" in problems("SmolModel", {"kind": "local"})[0]
    (folder / "cache/models/SmolModel").mkdir(parents=True)
    (folder / "cache/models/SmolModel/config.json").write_text("{}", "utf-8")
    assert problems("SmolModel", {"kind": "local"}) == []


def test_a_renderer_that_was_registered_with_the_cookbook_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    package, renderers = ModuleType("tinker_cookbook"), ModuleType("tinker_cookbook.renderers")
    monkeypatch.setattr(renderers, "get_registered_renderer_names", lambda: ["house_style"], raising=False)
    monkeypatch.setattr(renderers, "get_renderer", problems, raising=False)
    monkeypatch.setitem(sys.modules, "tinker_cookbook", package)
    monkeypatch.setitem(sys.modules, "tinker_cookbook.renderers", renderers)
    monkeypatch.setattr(models, "find_spec", Mock())
    models.registered_renderers.cache_clear()
    try:
        assert problems("tiny", {"kind": "mock"}, renderer_name="house_style") == []
        [said] = problems("tiny", {"kind": "mock"}, renderer_name="hose_style")
        assert "Did you mean 'house_style'?" in said
    finally:
        models.registered_renderers.cache_clear()
