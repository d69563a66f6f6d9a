"""The view of all arms: what is told of them, and that nothing anybody prints is lost or garbles it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from evsys_sdk.experiment.jobs.live_status import ArmStatus, LiveStatus, estimate_left
from evsys_sdk.observers.progress.board import Changes, Repeats, headline, watch_plain


def status(*arms: ArmStatus, state: str = "running") -> LiveStatus:
    return LiveStatus(Path("outputs/words"), "words-1", state, 1, "here", list(arms))


def running(name: str, step: int, **more: object) -> ArmStatus:
    fields: dict[str, object] = {"total_steps": 100, "step_s": 2.0, **more}
    return ArmStatus(name, "running", step=step, **fields)  # pyright: ignore[reportArgumentType]


def test_time_left_counts_what_waits_and_how_many_run_side_by_side() -> None:
    waiting = [ArmStatus(f"w{number}", "waiting") for number in range(2)]
    assert estimate_left([running("a", 50), running("b", 50)]) == 100
    assert estimate_left([running("a", 50), running("b", 50), *waiting]) == (100 + 100 + 200 + 200) / 2
    assert estimate_left([running("a", 50), ArmStatus("b", "completed", 100, 100, step_s=2.0)]) == 100
    assert estimate_left([running("a", 50, step_s=None)]) is None
    assert estimate_left(waiting) is None


def test_time_left_is_never_less_than_that_of_the_slowest_arm() -> None:
    assert estimate_left([running("a", 99), running("b", 0, step_s=10.0)]) == 1000


def test_the_headline_counts_arms() -> None:
    failed = ArmStatus("c", "failed", 3, 100, error="no")
    line = headline(status(running("a", 50), running("b", 50), failed, ArmStatus("d", "waiting")), 72)
    assert line == "1 of 4 arms done, 1 failed, 2 running, about 3m 20s left, 1m 12s so far"


def test_arms_that_the_same_command_resumes_are_not_done() -> None:
    ended = [ArmStatus(name, name, 3, 100) for name in ("completed", "failed", "cancelled", "killed")]
    assert status(*ended).done == 2


def test_each_score_and_each_end_is_reported_once() -> None:
    changes = Changes()
    before = running("a", 20, value=0.5, scores={"val/x": 0.25}, scored_at={"val/x": 20})
    after = running("a", 40, value=0.5, scores={"val/x": 0.25}, scored_at={"val/x": 40})
    ended = ArmStatus("a", "failed", 41, 100, error="Traceback\nKeyError: 'x'")
    assert list(changes.update(status(before))) == [("eval", "a", "step 20  val/x 0.25")]
    assert list(changes.update(status(before))) == []
    assert list(changes.update(status(after))) == [("eval", "a", "step 40  val/x 0.25 (+0)")]
    assert list(changes.update(status(ended))) == [("failed", "a", "41 steps, KeyError: 'x'")]
    assert list(changes.update(status(ended))) == []


def test_an_arm_that_is_tried_again_may_end_again() -> None:
    changes = Changes()
    for _ in range(2):
        assert [kind for kind, _, _ in changes.update(status(ArmStatus("a", "failed", 1)))] == ["failed"]
        assert list(changes.update(status(running("a", 2)))) == []


def test_sentences_that_arms_repeat_are_known_and_short_lines_never_are() -> None:
    repeats = Repeats()
    sentence = "every answer to the 6 tasks of 'words' scores 1"
    assert [repeats.is_repeated(line) for line in (sentence, sentence, "ok", "ok")] == [False, True, False, False]
    assert repeats.count == 1


def test_without_a_terminal_each_arm_that_ends_is_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    looks = [
        status(running("a", 1), ArmStatus("b", "waiting")),
        status(ArmStatus("a", "completed", 100, 100, step_s=2.0), running("b", 50)),
        status(ArmStatus("a", "completed", 100, 100), ArmStatus("b", "failed", 60, 100), state="failed"),
    ]
    for number, arm_status in enumerate(looks):
        with watch_plain(Path("outputs/words"), lambda _, arm_status=arm_status: arm_status):
            pass  # it looks once more when it ends
        lines = capsys.readouterr().err.splitlines()
        assert len(lines) == min(number, 1)
    assert lines == ["[words] 2 of 2 arms done, 1 failed, 0s so far"]


PRINTS = """
import os, subprocess, sys
from pathlib import Path
from evsys_sdk.experiment.jobs.live_status import LiveStatus
from evsys_sdk.observers.progress.board import watch_live

found = LiveStatus(Path("words"), "w", "running", 1, "here", [])
with watch_live(Path("words"), lambda _: found):
    print("printed by Python", file=sys.stderr)
    os.write(2, b"written below Python\\n")
    subprocess.run([sys.executable, "-c", "import sys; print('said by a child', file=sys.stderr)"], check=True)
    sys.stderr.write("half a line")
print("after it", file=sys.stderr)
"""


def test_whatever_is_printed_meanwhile_arrives_also_from_other_processes(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", PRINTS], capture_output=True, text=True, check=True, cwd=tmp_path)
    for text in ("printed by Python", "written below Python", "said by a child", "half a line", "after it"):
        assert done.stderr.count(text) == 1, done.stderr
    assert done.stdout == ""


def test_output_that_is_no_terminal_is_left_alone(tmp_path: Path) -> None:
    script = f"{PRINTS}print('the result')\n"
    with (tmp_path / "out").open("wb") as out:
        subprocess.run([sys.executable, "-c", script], stdout=out, stderr=subprocess.DEVNULL, check=True, cwd=tmp_path)
    assert (tmp_path / "out").read_text(encoding="utf-8") == "the result\n"
