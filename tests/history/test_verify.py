"""`evsys verify` accepts what was exported and refuses what was altered since."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from evsys_sdk import ExperimentConfig
from evsys_sdk.cli.main import main
from evsys_sdk.experiment import Experiment
from evsys_sdk.history.views.verify import verify_export
from evsys_sdk.record.events import digest
from evsys_sdk.record.evidence import hash_conclusion_page

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


@pytest.fixture
def claimed(tmp_path: Path) -> dict[str, Any]:
    """Two runs with two seeds, a claim, and tasks to choose and to judge by."""
    task = {"kind": "in_process", "fn_name": "exact_match"}
    for split in ("val", "test"):
        tasks = [{"task_id": f"{split}{at}", "instruction": f"{split} q{at}"} for at in range(6)]
        rows = [{**one, "verifier": {**task, "expected": f"a{at}"}} for at, one in enumerate(tasks)]
        (tmp_path / f"{split}.jsonl").write_text("".join(json.dumps(one) + "\n" for one in rows), encoding="utf-8")
    entries = [{"name": one, "path": str(tmp_path / f"{one}.jsonl"), "split": one} for one in ("val", "test")]
    runs: list[dict[str, Any]] = [
        {
            "name": f"steps_{steps}",
            "data": {"source_kind": "in_memory", "rows": ROWS},
            "model": {"name": "tiny"},
            "algorithm": {"kind": "sft", "params": {"max_steps": steps, "batch_size": 3, "save_every": 2}},
            "backend": {"kind": "mock"},
        }
        for steps in (2, 6)
    ]
    entries = [{**one, "max_tokens": 4, "run_every": 2 if one["split"] == "val" else None} for one in entries]
    claim = {"claim": "longer is better", "metric": "test/test/pass@1", "baseline": "steps_2", "min_effect": 0.2}
    metadata = {"hypothesis": claim, "benchmark": entries, "success_metric": "pass@1"}
    return {"name": "e", "output_dir": str(tmp_path / "outputs"), "n_repeats": 2, "metadata": metadata, "runs": runs}


@pytest.mark.slow
def test_exports_of_experiments_of_every_kind_are_accepted(claimed: dict[str, Any], tmp_path: Path) -> None:
    folders: list[Path] = []

    def run(name: str, *, extend: bool = False, **change: Any) -> Path:
        config = ExperimentConfig.model_validate({**claimed, "name": name, **change})
        return Experiment(config).run(extend=extend).path

    def export(folder: Path, *options: str) -> None:
        folders.append(tmp_path / f"export{len(folders)}")
        assert main(["export", str(folder), "-o", str(folders[-1]), *options]) == 0

    whole = run("whole")
    for arm in ("steps_2__seed42", "steps_2__seed43", "steps_6__seed42", "steps_6__seed43"):
        export(whole, "--arm", arm)
        export(whole, "--arm", arm, "--checkpoint", "last")
    for step in ("2", "4"):
        export(whole, "--arm", "steps_6__seed42", "--checkpoint", step)
    assert main(["note", str(whole), "kept"]) == 0
    export(whole)
    run("grown")
    export(run("grown", extend=True, n_repeats=3))
    export(run("one_seed", n_repeats=1))
    export(run("no_claim", metadata={**claimed["metadata"], "hypothesis": None}))
    export(run("stopped", budget={"tokens": 150}))
    export(run("continued", budget={"tokens": 150}))
    export(run("continued", budget={"tokens": 1_000_000}))
    export(run("sentence", metadata={**claimed["metadata"], "hypothesis": "longer is better"}))
    (tmp_path / "archive").mkdir()
    moved = whole.rename(tmp_path / "archive" / "whole")
    export(moved)
    assert main(["invalidate", str(moved), "--reason", "the rows were wrong"]) == 0
    export(moved)
    assert len(folders) == 20
    assert [verify_export(folder).problems for folder in folders] == [[]] * len(folders)


def chain_anew(folder: Path) -> None:
    """Make a journal agree with itself again after one of its lines was edited."""
    journal, before, lines = folder / "dossier" / "journal.jsonl", b"", list[bytes]()
    for line in journal.read_bytes().splitlines():
        before = json.dumps({**json.loads(line), "prev": digest(before)}).encode()
        lines.append(before)
    journal.write_bytes(b"\n".join(lines) + b"\n")


def edit_journal(old: str, new: str) -> Callable[[Path], None]:
    def alter(folder: Path) -> None:
        replace_in("journal.jsonl", old, new)(folder)
        chain_anew(folder)

    return alter


def edit_conclusion(old: str, new: str, *, origin: bool = False) -> Callable[[Path], None]:
    """Edit the conclusion everywhere: as data, as a page, its hashes in the journal, and the chain of the journal."""

    def alter(folder: Path) -> None:
        dossier = folder / "dossier"
        for path in (dossier / "conclusion.json", dossier / "conclusion.md", *[folder / "evsys_export.json"] * origin):
            path.write_text(path.read_text("utf-8").replace(old, new), encoding="utf-8")
        lines = [json.loads(line) for line in (dossier / "journal.jsonl").read_text("utf-8").splitlines()]
        sha256 = hashlib.sha256((dossier / "conclusion.json").read_bytes()).hexdigest()
        hashes = {"page": hash_conclusion_page(dossier), "sha256": sha256}
        changed = [json.dumps({**one, **(hashes if one["kind"] == "concluded" else {})}) for one in lines]
        (dossier / "journal.jsonl").write_text("\n".join(changed) + "\n", encoding="utf-8")
        chain_anew(folder)

    return alter


def claim_anew(folder: Path) -> None:
    edit_conclusion("longer is better", "shorter is better")(folder)
    journal = folder / "dossier" / "journal.jsonl"
    journal.write_text(journal.read_text("utf-8").replace("longer is better", "shorter is better"), encoding="utf-8")
    chain_anew(folder)


def change_weights(folder: Path) -> None:
    with np.load(folder / "weights.npz") as found:
        arrays = dict(found)
    first = next(iter(arrays))
    np.savez(folder / "weights.npz", allow_pickle=False, **{f"{first}2": arrays.pop(first)}, **arrays)


def link_weights(folder: Path) -> None:
    weights = folder / "weights.npz"
    weights.rename(folder.with_name("elsewhere.npz")).touch()
    weights.symlink_to(folder.with_name("elsewhere.npz"))


def name_model_twice(folder: Path) -> None:
    origin = folder / "evsys_export.json"
    content = origin.read_text("utf-8")
    origin.write_text(content.replace('"model": "tiny"', '"model": "huge", "model": "tiny"'), encoding="utf-8")


FORGED: dict[str, Callable[[Path], object]] = {
    "score in the journal": edit_journal('"test/test/pass@1": ', '"test/test/pass@1": 1'),
    "status in the journal": edit_journal('"status": "completed"', '"status": "failed"'),
    "hash of rows": append_to("dossier/*/datasets.json"),
    "hashes of base and code": append_to("dossier/*/identity.json"),
    "hashes of tasks": append_to("dossier/*/benchmarks.json"),
    "scores by task": append_to("dossier/*/scores.jsonl"),
    "checkpoints": append_to("dossier/*/checkpoints.jsonl"),
    "result of an arm": replace_in("steps_2__seed42/run_result.json", '"test/test/pass@1": ', '"test/test/pass@1": 1'),
    "no scores": lambda folder: next(folder.glob("dossier/steps_2*/scores.jsonl")).unlink(),
    "added record": lambda folder: (folder / "dossier" / "spend.jsonl").touch(),
    "verdict": edit_conclusion("inconclusive", "supported", origin=True),
    "claim in the conclusion": edit_conclusion("longer is better", "shorter is better"),
    "claim": claim_anew,
    "level": edit_conclusion('"error_rate": 0', '"error_rate": 1'),
    "renamed array": change_weights,
    "linked weights": link_weights,
    "key given twice": name_model_twice,
    "no page": lambda folder: (folder / "README.md").unlink(),
    "page of bytes": lambda folder: (folder / "README.md").write_bytes(b"\xff\xfe"),
    "empty folder": lambda folder: (folder / "more").mkdir(),
}


@pytest.mark.slow
def test_exports_forged_with_consistent_hashes_are_refused(claimed: dict[str, Any], tmp_path: Path) -> None:
    result = Experiment(ExperimentConfig.model_validate(claimed)).run()
    assert result.conclusion is not None
    assert result.conclusion["verdict"] == "inconclusive"
    honest = tmp_path / "honest"
    assert main(["export", str(result.path), "-o", str(honest)]) == 0
    accepted: list[str] = []
    for name, forge in FORGED.items():
        forge(copy := Path(shutil.copytree(honest, tmp_path / name.replace(" ", "_"))))
        assert main(["verify", str(honest)]) == 0
        if main(["verify", str(copy)]) != 2:
            accepted.append(name)
    assert accepted == []
