"""Records that the version before wrote: read with the same answers, and resumed.

`golden/make.py` says how they were made. Answers that are meant to differ are named in `CHANGED`, each with the reason.
"""

from __future__ import annotations

import json
import shutil
import socket
from pathlib import Path
from typing import Any

import pytest

from evsys_sdk.cli.main import main
from evsys_sdk.record.events import Journal, Kind, verify_chain
from evsys_sdk.record.layout import ExperimentFiles
from evsys_sdk.record.reader import ExperimentRecord

GOLDEN = Path(__file__).parent / "golden" / "v1"
ANSWERS = sorted(path.stem for path in (GOLDEN / "answers").glob("*.json"))
EXPERIMENTS = sorted(path.name for path in (GOLDEN / "record").iterdir())
_KILLED = {
    # One seed without a conclusion had an interval of 1.96 standard errors, which pretended to know other seeds.
    "best_low": (0.0, None),
    "best_high": (0.0, None),
    # The time of a killed experiment is that of its ledger, and no longer that of the arms which ended.
    "spend.wall_s": (1.087, 1.238),
}
_RUN = "runs.r__learning_rate0p001"
_WAITING = {
    # A state that an arm is in, rather than the last event about it.
    f"arms.r__learning_rate0p01__seed{seed}.status": ("pending", "waiting")
    for seed in (42, 43)
}
CHANGED: dict[str, dict[str, tuple[Any, Any]]] = {
    "history": {f"experiments.killed.{path}": values for path, values in _KILLED.items()},
    "show-budget": _WAITING,
    "show-killed": {
        **_KILLED,
        **_WAITING,
        "arms.r__learning_rate0p001__seed43.status": ("started", "killed"),
        # The config names it, also before anything is concluded.
        f"{_RUN}.is_baseline": (False, True),
        f"{_RUN}.low": (0.0, None),
        f"{_RUN}.high": (0.0, None),
        # What the killed arm had spent is known, too.
        f"{_RUN}.spend.tokens_sampled": (106.0, 146.0),
        f"{_RUN}.spend.wall_s": (1.087, 1.238),
    },
    # The words of the view: an arm whose process is gone is killed.
    "status-killed": {
        "arms.r__learning_rate0p001__seed43.state": ("broken off", "killed"),
        "counts.broken off": (1, None),
    },
    # Of two experiments the best runs are compared, and only where they differ.
    "compare-again-sweep": {
        "config": (
            json.loads((GOLDEN / "answers" / "compare-again-sweep.json").read_text("utf-8"))["config"],
            [
                {"path": "run.algorithm.params.learning_rate", "values": [0.02, 0.01]},
                {"path": "run.backend.params.latency_ms", "values": [10, "(not set)"]},
                {"path": "callbacks[0].kind", "values": ["(not set)", "local_logger"]},
            ],
        )
    },
    # A run that the search stopped early counts with the scores that it has.
    "show-search": {
        f"runs.r__learning_rate{rate}.{field}": values
        for rate in ("0p0001", "0p03")
        for field, values in {"n_seeds": (0, 1), "score": (None, 0.0)}.items()
    },
}
"""Answer -> dotted path -> what it was and what it is, where that is meant to differ."""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """The project of the records, on this machine, where no one works on any of them."""
    shutil.copytree(GOLDEN / "project", tmp_path, dirs_exist_ok=True)
    shutil.copytree(GOLDEN / "record", tmp_path / "outputs")
    for folder in (tmp_path / "outputs").iterdir():
        (folder / ".lock").write_text(json.dumps({"pid": 1, "host": socket.gethostname()}), encoding="utf-8")
    return tmp_path


def ask(capsys: pytest.CaptureFixture[str], *arguments: str) -> Any:
    assert main([*arguments, "--json"]) == 0
    return json.loads(capsys.readouterr().out.replace(f"{Path.cwd()}/", ""))


def test_all_kinds_of_records_are_there() -> None:
    assert EXPERIMENTS == ["again", "budget", "continual", "failed", "killed", "plain", "rl", "search", "sweep"]
    assert len(ANSWERS) == 2 + 2 * len(EXPERIMENTS)


@pytest.mark.parametrize("name", ANSWERS)
def test_an_old_record_gives_the_old_answers(project: Path, capsys: pytest.CaptureFixture[str], name: str) -> None:
    expected = json.loads((GOLDEN / "answers" / f"{name}.json").read_text("utf-8"))
    verb, *experiments = name.split("-")
    options = ["--sort", "name"] if verb == "history" else [f"outputs/{experiment}" for experiment in experiments]
    reply = ask(capsys, verb, *options)
    for pair in [*expected.get("differences", ()), *reply.get("differences", ())]:
        assert pair.pop("low") < pair["difference"] < pair.pop("high")  # how wide it is is up to the statistics
    assert differences(by_name(expected), by_name(reply)) == CHANGED.get(name, {})


def by_name(answer: Any) -> Any:
    """The answer with lists of named things as objects."""
    if isinstance(answer, dict):
        return {name: by_name(value) for name, value in answer.items()}
    if not isinstance(answer, list):
        return answer
    named = [one for one in answer if isinstance(one, dict)]
    keys = ("arm", "name", "run") if named and len(named) == len(answer) else ()
    key = next((key for key in keys if len({one.get(key) for one in named} - {None}) == len(named)), None)
    return Named({one[key]: by_name(one) for one in answer}) if key else [by_name(one) for one in answer]


class Named(dict[str, Any]):
    """A list of named things: none may be missing, and none may be more than there were."""


def differences(old: Any, new: Any, path: str = "") -> dict[str, tuple[Any, Any]]:
    """Dotted path -> the old value and the new one; what an answer did not tell before is no difference."""
    if isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        old, new = dict(enumerate(old)), dict(enumerate(new))
    if not (isinstance(old, dict) and isinstance(new, dict)):
        return {} if old == new else {path: (old, new)}
    by_key: dict[str, tuple[Any, Any]] = {}
    for name in {**old, **new} if isinstance(old, Named) else old:
        by_key |= differences(old.get(name), new.get(name), f"{path}.{name}" if path else name)
    return by_key


def finish(config: str, *options: str) -> int:
    return main(["run", config, "--quiet", *options])


def results(folder: str) -> dict[str, Any]:
    record = ExperimentRecord.open(Path("outputs") / folder)
    return {run.name: (run.status, run.metrics) for run in record.runs_on_disk}


def test_a_killed_record_is_resumed_by_the_same_command_and_ends_as_if_nothing_had_happened(project: Path) -> None:
    before = ExperimentRecord(Path("outputs/killed"))
    assert (before.status, before.format) == ("killed", 1)
    assert finish("killed.yaml") == 0
    after = ExperimentRecord(Path("outputs/killed"))
    assert (after.status, after.format, len(after.events) > len(before.events)) == ("completed", 2, True)
    assert after.conclusion["verdict"] == "inconclusive"
    assert finish("sweep.yaml", "--fresh") == 0
    resumed, fresh = results("killed"), results("sweep.2")  # the same runs, but for how slow their backend is
    assert {name: status for name, (status, _) in resumed.items()} == {
        name: status for name, (status, _) in fresh.items()
    }
    for name, (_, metrics) in resumed.items():
        # The first steps of `killed` were computed on another machine, whose processor rounds float32 sums differently.
        assert metrics == pytest.approx(fresh[name][1], rel=1e-6), name
    # What was written before it had hashes stays as it was, and what came after is chained to it.
    [problem] = verify_chain(after.files.journal)
    assert f"{len(before.events)} events are of version 1" in problem


def test_a_record_that_its_budget_stopped_continues_with_a_higher_one(project: Path) -> None:
    config = Path("budget.yaml").read_text("utf-8")
    Path("budget.yaml").write_text(config.replace("tokens: 1500", "tokens: 150000"), encoding="utf-8")
    assert finish("budget.yaml") == 0
    record = ExperimentRecord(Path("outputs/budget"))
    assert (record.status, record.budget_stop) == ("completed", "")
    assert [run.status for run in record.runs] == ["completed"] * 4
    assert record.spend["tokens_trained"] == record.tally.total().tokens_trained


@pytest.mark.parametrize("name", ["sweep", "continual"])
def test_a_finished_record_is_recalled_and_not_trained_again(project: Path, name: str) -> None:
    before = results(name)
    assert finish(f"{name}.yaml", "--resume") == 0
    assert results(name) == before
    events = ExperimentRecord(Path("outputs") / name).events
    resumed = next(at for at, event in enumerate(events) if event.kind == Kind.RESUMED)
    assert {event.kind for event in events[resumed:]} == {
        Kind.RESUMED,
        Kind.ARM_RECALLED,
        Kind.CONCLUDED,
        Kind.ENDED,
    }


def test_a_search_that_was_removed_is_refused_before_its_record_is_touched(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = ExperimentFiles(Path("outputs/search")).journal.read_bytes()
    assert finish("search.yaml", "--resume") == 1
    assert "search.kind" in capsys.readouterr().err
    assert ExperimentFiles(Path("outputs/search")).journal.read_bytes() == before


def test_what_failed_in_an_old_record_and_would_fail_again_is_reported_before_it_is_tried(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = ExperimentFiles(Path("outputs/failed")).journal.read_bytes()
    assert finish("failed.yaml", "--resume") == 1
    assert "28 tokens, more than the 3 allowed" in capsys.readouterr().err
    assert ExperimentFiles(Path("outputs/failed")).journal.read_bytes() == before


def test_an_old_record_of_another_config_is_refused_in_a_sentence(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = Path("killed.yaml").read_text("utf-8")
    Path("killed.yaml").write_text(config.replace("n_repeats: 2", "n_repeats: 3"), encoding="utf-8")
    assert finish("killed.yaml", "--resume") == 1
    assert "the config differs from the one in outputs/killed in: n_repeats" in capsys.readouterr().err


def test_a_record_of_a_later_version_is_refused_in_a_sentence(
    project: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as later, Journal.of(Path("outputs/killed")) as journal:
        later.setattr("evsys_sdk.record.events.FORMAT", 3)
        journal.append(Kind.RESUMED)
    before = ExperimentFiles(Path("outputs/killed")).journal.read_bytes()
    assert finish("killed.yaml") == 1
    assert "was written by a later version (format 3, this one knows 2). Update" in capsys.readouterr().err
    assert ExperimentFiles(Path("outputs/killed")).journal.read_bytes() == before
