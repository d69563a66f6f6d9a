from pathlib import Path

import pytest

from evsys_sdk.errors import TrainingError
from evsys_sdk.record.run_files.checkpoints import Checkpoint, CheckpointLog


def checkpoint(step: int, **more: object) -> Checkpoint:
    return Checkpoint(f"step{step}", step, f"state{step}", f"sampler{step}", **more)  # type: ignore[arg-type]


def test_what_is_appended_is_read_back(tmp_path: Path) -> None:
    log = CheckpointLog.in_dir(tmp_path / "run")
    written = [checkpoint(10, metrics={"loss": 0.5}, builder={"cursor": 3}), checkpoint(20, final=True)]
    for item in written:
        log.append(item)
    assert log.read() == written
    assert log.last() == written[-1]


def test_a_run_without_checkpoints_has_none(tmp_path: Path) -> None:
    log = CheckpointLog.in_dir(tmp_path)
    assert log.read() == []
    assert log.last() is None


@pytest.mark.parametrize("cut", [1, 5, 40])
def test_a_line_cut_off_by_a_kill_is_passed_over_and_repaired(tmp_path: Path, cut: int) -> None:
    log = CheckpointLog.in_dir(tmp_path)
    log.append(checkpoint(10))
    log.append(checkpoint(20))
    log.path.write_bytes(log.path.read_bytes()[:-cut])
    assert [item.next_step for item in log.read()] == [10]
    log.repair()
    log.append(checkpoint(30))
    assert [item.next_step for item in log.read()] == [10, 30]


def test_a_damaged_line_in_the_middle_is_an_error_that_names_it(tmp_path: Path) -> None:
    log = CheckpointLog.in_dir(tmp_path)
    log.append(checkpoint(10))
    log.path.write_text("{broken\n" + log.path.read_text(encoding="utf-8"), encoding="utf-8")
    with pytest.raises(TrainingError, match=r"checkpoints\.jsonl:1: .*damaged"):
        log.read()


def test_the_best_checkpoint_follows_the_metric_and_ties_go_to_the_earlier(tmp_path: Path) -> None:
    log = CheckpointLog.in_dir(tmp_path)
    for step, loss in ((1, 0.4), (2, 0.2), (3, 0.2), (4, 0.9)):
        log.append(checkpoint(step, metrics={"loss": loss}))
    log.append(checkpoint(5))
    assert log.best("loss", "min") == log.read()[1]
    assert log.best("loss", "max") == log.read()[3]
    assert log.best("accuracy", "max") is None
    assert log.best("loss", "min", stage=1) is None
