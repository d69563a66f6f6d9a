"""What a person sees, captured on real terminals: one arm, six arms, a failure, Ctrl-C, a narrow window, no colour.

Each capture is a file below `golden/`, with everything masked that differs from run to run. To look at them and take
them over: TERMINAL_GOLDEN=write pytest tests/terminal
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from .screen import Session, open_session

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

GOLDEN = Path(__file__).parent / "golden"
WORDS = ["ash", "bay", "elm", "fir", "oak", "yew"]
RUN = """
    data: { path: rows.jsonl, transforms: [{ kind: jsonl_to_chat }] }
    model: { name: tiny }
    backend: { kind: mock, params: { latency_ms: 15 } }
"""
ONE = f"""
name: words
output_dir: outputs
runs:
  - name: sft
    algorithm: {{ kind: sft, params: {{ max_steps: 60, batch_size: 3, save_every: 30 }} }}{RUN}
metadata:
  benchmark: [{{ name: words, path: tasks.jsonl, split: val, run_every: 30, metrics: [pass@1], max_tokens: 4 }}]
"""
# Its arms stop half way until the test has seen the board: how often a busy machine redraws it does not matter.
SIX = f"""
name: words
output_dir: outputs
max_concurrent_arms: 2
n_repeats: 3
runs:
  - name: slow
    algorithm: {{ kind: held, params: {{ max_steps: 60, batch_size: 3, learning_rate: 0.001 }} }}{RUN}
  - name: fast
    algorithm: {{ kind: held, params: {{ max_steps: 60, batch_size: 3, learning_rate: 0.01 }} }}{RUN}
"""
HELD = f"""
name: words
output_dir: outputs
runs:
  - name: sft
    algorithm: {{ kind: held, params: {{ max_steps: 60, batch_size: 3, learning_rate: 0.001 }} }}{RUN}
"""
BROKEN = f"""
name: words
output_dir: outputs
runs:
  - name: fine
    algorithm: {{ kind: sft, params: {{ max_steps: 3, batch_size: 3 }} }}{RUN}
  - name: broken
    algorithm: {{ kind: forgetful, params: {{ max_steps: 3, batch_size: 3 }} }}{RUN}
"""
EXTENSION = """
from evsys_sdk import SFT, register_algorithm


@register_algorithm("forgetful")
class Forgetful(SFT):
    async def build_batch(self, step_idx):
        row = dict(self.rows[0])
        if step_idx == 2:
            return row["anwser"] + 1
        return await super().build_batch(step_idx)


@register_algorithm("held")
class Held(SFT):
    builds_ahead = False

    async def build_batch(self, step_idx):
        import asyncio
        from pathlib import Path

        while step_idx == 30 and not (Path("release").exists() or Path(f"release-{self.run_dir.name}").exists()):
            await asyncio.sleep(0.05)
        return await super().build_batch(step_idx)
"""


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Session]]:
    """Run a config on a terminal; it is ended with the test."""
    rows = [{"prompt": word, "completion": word.upper()} for word in WORDS]
    # Others as well: few rows that are visited often are warned of.
    rows += [{"prompt": f"{word} {n}", "completion": word.upper()} for word in WORDS for n in range(2, 12)]
    verifier = {"kind": "in_process", "fn_name": "exact_match"}
    tasks = [
        {"task_id": word, "instruction": word, "verifier": {**verifier, "expected": word.title()}} for word in WORDS
    ]
    for name, lines in (("rows", rows), ("tasks", tasks)):
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines), "utf-8")
    (tmp_path / "extension.py").write_text(EXTENSION, "utf-8")
    opened: list[Session] = []

    def run(config: str, *options: str, width: int = 100, **environment: str) -> Session:
        (tmp_path / "config.yaml").write_text(config, "utf-8")
        opened.append(open_session(["run", "config.yaml", *options], tmp_path, width=width, environment=environment))
        return opened[-1]

    yield run
    for session in opened:
        session.close()


def mask(lines: list[str]) -> list[str]:
    """What differs each time: clock times, durations, speeds, how far it has got, and the last digits of losses."""
    text = "\n".join(lines)
    text = re.sub(r"\b\d\d:\d\d:\d\d\b", "<clock>", text)
    text = re.sub(r"\b(?:\d+[dhm] )*\d+(?:\.\d+)?[dhms]\b", "<t>", text)
    text = re.sub(r"[\d.]+[kM]? tok/s", "<speed> tok/s", text)
    text = re.sub(r"\b\d+\.\d+(e-?\d+)?\b|\b\de-\d+\b", "<x>", text)
    text = re.sub(r"[━╸╺]+", "<bar>", text)
    text = re.sub(r"(?m)^(\w+) +[├─┤●]+ +<x>$", r"\1 <dots> <x>", text)
    text = re.sub(r"(?m)^ +-?(?:<x>|\d+) +-?(?:<x>|\d+)$", " <scale>", text)
    text = re.sub(r" [▁▂▃▄▅▆▇█]+", " <curve>", text)
    text = re.sub(r" +\d+/60(?: +\d+%)?", " <n>/60", text)
    text = re.sub(r"\[sft\] \d+/60 \(\d+%\)", "[sft] <n>/60", text)
    return [re.sub(r" [↑↓→] ", " <trend> ", line).rstrip() for line in text.splitlines()]


def check(name: str, lines: list[str]) -> None:
    path = GOLDEN / f"{name}.txt"
    screen = "\n".join(mask(lines)) + "\n"
    if os.environ.get("TERMINAL_GOLDEN") == "write":
        path.parent.mkdir(exist_ok=True)
        path.write_text(screen, encoding="utf-8")
    assert screen == path.read_text(encoding="utf-8")


def has(*texts: str) -> Callable[[list[str]], bool]:
    return lambda lines: all(any(text in line for line in lines) for text in texts)


def sort_arms(lines: list[str]) -> list[str]:
    """Arms that run side by side end in any order."""
    moments = [line for line in lines if line.startswith(("◆", "✔", "✖"))]
    return [*sorted(moments), *(line for line in lines if line not in moments)]


def test_one_arm(start: Callable[..., Session], tmp_path: Path) -> None:
    session = start(HELD, "--import", "extension.py")
    frame = session.read_until(lambda lines: bool(re.search(r"30/60.*left.*loss \d", "".join(lines[-1:]))))
    check("one_arm_running", frame[-2:])
    (tmp_path / "release").touch()
    check("one_arm", session.read_to_end())
    assert session.process.returncode == 0


def test_six_arms_side_by_side(start: Callable[..., Session], tmp_path: Path) -> None:
    for arm in ("slow__seed42", "slow__seed43"):
        (tmp_path / f"release-{arm}").touch()
    session = start(SIX, "--import", "extension.py")
    frame = session.read_until(lambda lines: "2 of 6 arms done, 2 running" in "\n".join(lines) and board_is_full(lines))
    check("six_arms_running", frame[-4:])
    (tmp_path / "release").touch()
    check("six_arms", sort_arms(session.read_to_end(120)))
    assert session.process.returncode == 0


def board_is_full(lines: list[str]) -> bool:
    return sum("/60" in line and "left" in line for line in lines[-4:]) == 2 and "waiting" in lines[-1]


def test_six_arms_in_a_narrow_window(start: Callable[..., Session], tmp_path: Path) -> None:
    session = start(SIX, "--import", "extension.py", width=48)
    frame = session.read_until(board_is_full)
    assert all(len(line) <= 48 for line in frame)
    head, *arms = frame[-4:]
    assert re.fullmatch(r"words: \d of 6 arms done, 2 running, about [^…]+…", head)  # cut where the window ends
    check("narrow_running", arms)
    (tmp_path / "release").touch()
    lines = session.read_to_end(120)
    table = next(at for at, line in enumerate(lines) if line.startswith("run "))  # a moment above it may be wrapped
    check("narrow", lines[table:])


def test_a_failure_is_named_with_its_place_and_expression(start: Callable[..., Session]) -> None:
    session = start(BROKEN, "--import", "extension.py")
    lines = session.read_to_end()
    assert session.process.returncode == 2
    assert sum("extension.py:10" in line for line in lines) == 2, "once when it came up, once below all arms"
    check("failure", sort_arms(lines))


def test_ctrl_c_is_answered_and_the_run_can_continue(start: Callable[..., Session], tmp_path: Path) -> None:
    session = start(HELD, "--import", "extension.py")
    session.read_until(has("30/60", "loss"))
    os.write(session.terminal, b"\x03")
    session.read_until(has("stopping after the current step"))
    (tmp_path / "release").touch()
    lines = session.read_to_end()
    assert session.process.returncode == 130
    check("ctrl_c", [re.sub(r"(cancelled) +\d+ ", r"\1  <n> ", line) for line in lines])


def test_without_colour_there_are_plain_lines(start: Callable[..., Session]) -> None:
    session = start(ONE, NO_COLOR="1")
    lines = session.read_to_end()
    assert not session.screen.styles
    check("no_colour", [line for line in lines if not re.match(r"\[sft\] \d+/60 \(\d\d+%\)", line)])
