"""metrics.csv: a header that grows, and a resume that leaves no trace."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from evsys_sdk.errors import DataError
from evsys_sdk.observers.callbacks.csv_metrics import CsvMetrics
from evsys_sdk.training.callback import EvalRecord, RunControl

if TYPE_CHECKING:
    from .conftest import MakeInfo


def run(make_info: MakeInfo, steps: range, *, run_dir: Path) -> None:
    callback = CsvMetrics()
    callback.on_run_start(make_info(run_dir=run_dir, steps_done=steps.start - 1), RunControl())
    for step in steps:
        callback.on_step(step, {"loss": 1 / step} | ({"grad_norm": 2.0} if step >= 3 else {}))
        if step % 2 == 0:
            callback.on_eval(EvalRecord("", "val", step, {"pass@1": step / 10}))
    callback.close()


def test_a_column_that_appears_later_is_added_to_every_row(make_info: MakeInfo, tmp_path: Path) -> None:
    run(make_info, range(1, 4), run_dir=tmp_path)
    assert (tmp_path / "metrics.csv").read_text(encoding="utf-8") == (
        "step,loss,val/pass@1,grad_norm\n1,1.0,,\n2,0.5,,\n2,,0.2,\n3,0.3333333333333333,,2.0\n"
    )


def test_a_resumed_run_ends_up_with_the_same_bytes(make_info: MakeInfo, tmp_path: Path) -> None:
    run(make_info, range(1, 9), run_dir=tmp_path / "whole")
    run(make_info, range(1, 7), run_dir=tmp_path / "resumed")
    with (tmp_path / "resumed/metrics.csv").open("a", encoding="utf-8") as file:
        file.write("3,0.1")  # killed in the middle of a row; what is there even looks like an early step
    run(make_info, range(5, 9), run_dir=tmp_path / "resumed")
    assert (tmp_path / "resumed/metrics.csv").read_bytes() == (tmp_path / "whole/metrics.csv").read_bytes()


def test_rows_can_be_followed_while_the_run_goes_on(make_info: MakeInfo, tmp_path: Path) -> None:
    callback = CsvMetrics(path="tables/m.csv")
    callback.on_run_start(make_info(run_dir=tmp_path), RunControl())
    callback.on_step(1, {"loss": float("nan")})
    with (tmp_path / "tables/m.csv").open(encoding="utf-8", newline="") as file:
        assert list(csv.DictReader(file)) == [{"step": "1", "loss": "nan"}]
    callback.close()


def test_names_that_need_quoting_survive(make_info: MakeInfo, tmp_path: Path) -> None:
    callback = CsvMetrics()
    callback.on_run_start(make_info(run_dir=tmp_path), RunControl())
    callback.on_step(1, {'a,"b"\nc': 1.0})
    callback.on_step(2, {"d": 2.0})
    callback.close()
    with (tmp_path / "metrics.csv").open(encoding="utf-8", newline="") as file:
        assert list(csv.reader(file)) == [["step", 'a,"b"\nc', "d"], ["1", "1.0", ""], ["2", "", "2.0"]]


@pytest.mark.parametrize("content", [b"date,price\n2020,3\n", b"step,loss\nfirst,3\n", b"\xff\xfe binary"])
def test_a_foreign_file_in_its_place_is_not_overwritten(make_info: MakeInfo, tmp_path: Path, content: bytes) -> None:
    (tmp_path / "metrics.csv").write_bytes(content)
    with pytest.raises(DataError, match="not a file that csv_metrics wrote"):
        CsvMetrics().on_run_start(make_info(run_dir=tmp_path), RunControl())
    assert (tmp_path / "metrics.csv").read_bytes() == content
