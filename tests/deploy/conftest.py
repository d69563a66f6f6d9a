"""A small project with an experiment that was run on the mock backend, and what looks like an adapter."""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from evsys_sdk import ExperimentConfig
from evsys_sdk.experiment import Experiment

COLOURS = ["red", "green", "blue", "pink"]


def chat(question: str, answer: str) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]}


def make_config(name: str = "routing", **changes: Any) -> ExperimentConfig:
    """Two seeds of one run that learns to name a colour."""
    rows = [chat(f"Which colour has number {n}?", COLOURS[n % 4]) for n in range(8)]
    run = {
        "name": "sft",
        "data": {"rows": rows, "source_kind": "in_memory"},
        "model": {"name": "tiny"},
        "algorithm": {"kind": "sft", "params": {"num_epochs": 2, "batch_size": 4}},
        "backend": {"kind": "mock"},
    }
    launcher = {"kind": "local", "params": {"arms_in": "threads"}}
    fields: dict[str, Any] = {"name": name, "output_dir": "outputs", "n_repeats": 2, "base_seed": 1, "run": run}
    return ExperimentConfig.model_validate({**fields, "launcher": launcher, **changes})


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / ".evsys").mkdir()
    return tmp_path


@pytest.fixture(scope="session")
def record(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The outputs of an experiment `routing` of two seeds, run once."""
    folder = tmp_path_factory.mktemp("trained")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        Experiment(make_config()).run()
    return folder / "outputs"


@pytest.fixture
def trained(project: Path, record: Path) -> Path:
    """The project with that experiment."""
    shutil.copytree(record, project / "outputs")
    return project


@pytest.fixture
def as_adapter(trained: Path) -> Path:
    """The same experiment as if it had trained an adapter of a real model, whose folder is returned."""
    base = trained / "base"
    base.mkdir()
    (base / "config.json").write_text(json.dumps({"model_type": "llama", "vocab_size": 5}), "utf-8")
    (base / "tokenizer.json").write_text("{}", "utf-8")
    (base / "chat_template.jinja").write_text("{{ messages }}", "utf-8")
    for sampler in (trained / "outputs" / "routing").glob("*/checkpoints/*/sampler"):
        (sampler / "weights.npz").unlink()
        (sampler / "adapter_model.safetensors").write_bytes(b"weights")
        config = {"peft_type": "LORA", "r": 2, "lora_alpha": 4, "base_model_name_or_path": "somewhere"}
        (sampler / "adapter_config.json").write_text(json.dumps(config), "utf-8")
    _forget_weights(trained / "outputs/routing/journal.jsonl")
    return base


def _forget_weights(journal: Path) -> None:
    """Rewrite a journal as if no weights had been hashed."""
    before, written = b"", list[bytes]()
    for line in journal.read_text("utf-8").splitlines():
        event: dict[str, Any] = {**json.loads(line), "weights": {}}
        event["prev"] = hashlib.sha256(before).hexdigest()[:32] if before else ""
        before = json.dumps(event, ensure_ascii=False).encode()
        written.append(before + b"\n")
    journal.write_bytes(b"".join(written))
