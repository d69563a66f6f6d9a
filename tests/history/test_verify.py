"""`evsys verify` accepts what was exported and refuses what was altered since."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from evsys_sdk import ExperimentConfig
from evsys_sdk.cli.main import main
from evsys_sdk.experiment import Experiment

ROWS = [
    {"messages": [{"role": "user", "content": f"q{at}"}, {"role": "assistant", "content": f"a{at}"}]} for at in range(6)
]
FACTS = (
    "experiment",
    "model",
    "backend",
    "algorithm",
    "seed",
    "verdict",
    "checkpoint",
    "arm",
    "data",
    "metric",
    "low",
    "high",
    "step",
    "score",
    "warnings",
    "config_sha256",
    "files",
    "run",
    "unknown",
)


@pytest.fixture
def exported(tmp_path: Path) -> Path:
    run = {
        "name": "r",
        "data": {"source_kind": "in_memory", "rows": ROWS},
        "model": {"name": "tiny"},
        "algorithm": {"kind": "sft", "params": {"max_steps": 4, "batch_size": 3}},
        "backend": {"kind": "mock"},
    }
    config = {"name": "e", "output_dir": str(tmp_path / "outputs"), "run": run}
    result = Experiment(ExperimentConfig.model_validate(config)).run()
    assert main(["export", str(result.path), "-o", str(tmp_path / "copy")]) == 0
    return tmp_path / "copy"


def change_fact(name: str) -> Callable[[Path], None]:
    def alter(folder: Path) -> None:
        file = folder / "evsys_export.json"
        file.write_text(json.dumps({**json.loads(file.read_text("utf-8")), name: "other"}), encoding="utf-8")

    return alter


def append_to(pattern: str) -> Callable[[Path], None]:
    def alter(folder: Path) -> None:
        file = next(iter(sorted(path for path in folder.glob(pattern) if path.is_file())))
        file.write_bytes(file.read_bytes() + b" ")

    return alter


def replace_in(name: str, old: str, new: str) -> Callable[[Path], None]:
    def alter(folder: Path) -> None:
        file = folder / "dossier" / name
        content = file.read_text("utf-8")
        assert old in content
        file.write_text(content.replace(old, new, 1), encoding="utf-8")

    return alter


def add_file(folder: Path) -> None:
    (folder / "more.bin").write_bytes(b"x")


def remove_file(folder: Path) -> None:
    (folder / "manifest.json").unlink()


def cut_journal(folder: Path) -> None:
    file = folder / "dossier" / "journal.jsonl"
    kept = [line for line in file.read_text("utf-8").splitlines(keepends=True) if '"concluded"' not in line]
    file.write_text("".join(kept[: len(kept) - 1]), encoding="utf-8")


ALTERED: dict[str, Callable[[Path], None]] = {
    **{name: change_fact(name) for name in FACTS},
    "weights": append_to("weights.npz"),
    "manifest": append_to("manifest.json"),
    "added file": add_file,
    "removed file": remove_file,
    "model in config": replace_in("config.json", '"tiny"', '"other"'),
    "data in config": replace_in("config.json", "q1", "q9"),
    "conclusion": append_to("dossier/conclusion.md"),
    "conclusion as data": append_to("dossier/conclusion.json"),
    "page": append_to("README.md"),
    "journal without its end": cut_journal,
    "journal without a line": replace_in("journal.jsonl", '"kind": "arm_started"', '"kind": "arm_began"'),
    "claim": replace_in("journal.jsonl", '"hypothesis_sha256"', '"hypothesis_sha257"'),
    "status": replace_in("journal.jsonl", '"completed"', '"cancelled"'),
    "hash of weights": replace_in("journal.jsonl", '"weights": {"', '"weights": {"_'),
}


def test_an_honest_export_is_accepted(exported: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify", str(exported)]) == 0
    assert "no issues found" in capsys.readouterr().out


@pytest.mark.parametrize("what", ALTERED)
def test_an_altered_export_is_refused(exported: Path, what: str) -> None:
    ALTERED[what](exported)
    assert main(["verify", str(exported)]) == 2
