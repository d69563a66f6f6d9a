"""A path that names a task source, as training data and as benchmark."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar, Literal

import pytest

from evsys_sdk.config.base import Strict
from evsys_sdk.data.stores.local import LocalDataStore
from evsys_sdk.data.task_source import build_task_source, is_task_source, locate_rows
from evsys_sdk.errors import DataError, MissingExtraError
from evsys_sdk.eval.verifier import BaseVerifier
from evsys_sdk.registry import REGISTRIES, register_verifier
from evsys_sdk.testing.task_source_conformance import TaskSourceConformance


class SumParams(Strict):
    subject: str
    knobs: dict[str, Any] = {}
    split: Literal["train", "test"] = "train"
    size: int = 5
    value: int = 0


class Sums(BaseVerifier[SumParams]):
    """Sums of two numbers."""

    name: ClassVar[str] = "sums"
    Config = SumParams
    version = "1"

    def make_rows(self) -> Iterator[dict[str, Any]]:
        first = 0 if self.cfg.split == "train" else 1000
        for n in range(first, first + self.cfg.size):
            params = {"subject": self.cfg.subject, "value": 2 * n}
            verifier = {"kind": "in_process", "fn_name": "sums", "expected": str(2 * n), "params": params}
            yield {"task_id": f"sum-{n}", "instruction": f"{n}+{n}=", "verifier": verifier, "metadata": self.cfg.knobs}

    def verify(self, *, completion: str) -> float:
        return float(completion.strip() == str(self.cfg.value))


@pytest.fixture(autouse=True)
def _sums(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    (tmp_path / ".evsys").mkdir()
    monkeypatch.chdir(tmp_path)
    with REGISTRIES["verifier"].isolated():
        register_verifier("sums")(Sums)
        yield


class TestSums(TaskSourceConformance):
    splits = {"train": "sums:doubles?size=4", "test": "sums:doubles?split=test&size=4"}


def test_a_store_reads_the_rows_of_a_source_and_writes_them_once(tmp_path: Path) -> None:
    path = "sums:doubles?size=3&level=hard"
    rows = list(LocalDataStore().read_jsonl(path))
    assert [row["instruction"] for row in rows] == ["0+0=", "1+1=", "2+2="]
    assert rows[0]["metadata"] == {"level": "hard"}
    file = locate_rows(path)
    assert file.parent == tmp_path / ".evsys" / "tasks"
    assert locate_rows(path) == file
    assert locate_rows("sums:doubles?size=4") != file


def test_paths_of_files_are_left_alone() -> None:
    assert not is_task_source("data/train.jsonl")
    assert not is_task_source("exact_match:something")
    assert locate_rows("data/train.jsonl") == Path("data/train.jsonl")


def test_a_wrong_param_is_named_with_its_path() -> None:
    with pytest.raises(DataError, match=r"sums:doubles\?size=many: size: .*Correct the value behind 'size='"):
        build_task_source("sums:doubles?size=many")
    with pytest.raises(DataError, match="not the path of a task source"):
        build_task_source("data/train.jsonl")


def test_a_source_whose_extra_is_missing_says_how_to_install_it() -> None:
    from importlib.util import find_spec

    if find_spec("reasoning_gym") is not None:
        pytest.skip("reasoning-gym is installed")
    with pytest.raises(MissingExtraError, match="reasoning-gym"):
        locate_rows("reasoning_gym:leg_counting")
