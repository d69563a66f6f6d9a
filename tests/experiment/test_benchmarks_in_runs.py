"""Benchmarks of a run: scored while training continues and once it is over, recorded for the right step, never lost."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from evsys_sdk import (
    AgentResult,
    ConfigError,
    Experiment,
    ExperimentConfig,
    HarborTask,
    register_agent,
    register_algorithm,
    register_verifier,
)
from evsys_sdk.algorithms.sft import SFT
from evsys_sdk.backends.mock.backend import MockBackend
from evsys_sdk.config import BackendConfig, Metadata
from evsys_sdk.errors import EvalError
from evsys_sdk.experiment import ExperimentResult
from evsys_sdk.experiment.arms.overrides import as_dry_run
from evsys_sdk.experiment.benchmark_plan import plan_benchmarks
from evsys_sdk.experiment.run_benchmarks import RunBenchmarks
from evsys_sdk.registry import REGISTRIES, register_backend
from evsys_sdk.training.batch import TrainingBatch
from evsys_sdk.training.callback import Callback, RunControl

WORDS = "abcdefghij"


@pytest.fixture(autouse=True)
def project(tmp_path: Path) -> Path:
    make_project(tmp_path)
    return tmp_path


def make_project(folder: Path) -> None:
    folder.mkdir(exist_ok=True)
    rows = [{"prompt": f"say {word}", "completion": word.upper()} for word in WORDS]
    tasks = [task(word, word.upper()) for word in WORDS]
    for name, content in (("train", rows), ("val", tasks[:5]), ("test", tasks[5:])):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in content), encoding="utf-8")


def task(word: str, expected: str, fn_name: str = "exact_match") -> dict[str, Any]:
    verifier = {"kind": "in_process", "fn_name": fn_name, "expected": expected}
    return {"task_id": word, "instruction": f"say {word}", "verifier": verifier, "metadata": {"vowel": word in "aei"}}


VAL: dict[str, Any] = {"name": "words", "path": "val.jsonl", "split": "val", "run_every": 4, "max_tokens": 4}
TEST: dict[str, Any] = {"name": "words", "path": "test.jsonl", "tags": ["test"], "max_tokens": 4}


def config(*entries: dict[str, Any], steps: int = 10, **changes: Any) -> ExperimentConfig:
    params = {"batch_size": 5, "max_steps": steps, "save_every": 5, **changes.pop("params", {})}
    run: dict[str, Any] = {
        "name": "r",
        "data": {"path": "train.jsonl", "transforms": [{"kind": "jsonl_to_chat"}]},
        "model": {"name": "tiny"},
        "algorithm": {"kind": "sft", "params": params},
        "backend": {"kind": "mock"},
    }
    metadata = {"benchmark": list(entries), **changes.pop("metadata", {})}
    callbacks = [{"kind": "local_logger"}, *changes.pop("callbacks", [])]
    fields = {"name": "e", "output_dir": "outputs", "run": run, "metadata": metadata, "callbacks": callbacks, **changes}
    return ExperimentConfig.model_validate(fields)


def run(*entries: dict[str, Any], resume: bool = False, **changes: Any) -> ExperimentResult:
    watchers = changes.pop("watchers", [])
    return Experiment(config(*entries, **changes), callbacks=watchers).run(resume=resume)


def scored_steps(folder: str = "validation", run_dir: str = "outputs/e/r") -> list[int]:
    lines = Path(run_dir, "logs", folder, "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line)["step"] for line in lines]


def record_of(folder: Path) -> dict[str, Any]:
    """Everything a run leaves behind that is not a time, a path, a name of an attempt or the order of arrival."""
    run_dir = folder / "outputs" / "e" / "r"
    contents = {
        str(path.relative_to(run_dir)): path.read_bytes()
        for path in [*run_dir.glob("logs/**/*.jsonl"), run_dir / "scores.json"]
        if path.name not in ("artifacts.jsonl", "timing.jsonl")
    }
    result = json.loads((run_dir / "run_result.json").read_text(encoding="utf-8"))
    best = result["artifacts"]["best_checkpoint"].split("-attempt")[0].removesuffix("/state")
    extras = {key: value for key, value in result["extras"].items() if key != "spend"}  # what is repeated is paid twice
    return {**contents, "metrics": result["metrics"], "best": Path(best).name, "extras": extras}


class AtStep(Callback):
    """Does something after one step."""

    def __init__(self, step: int, action: Callable[[RunControl], object]) -> None:
        self.step, self.action = step, action

    def on_run_start(self, info: Any, control: Any) -> None:
        self.control = control

    def on_step(self, step: int, metrics: Mapping[str, float]) -> None:
        if step == self.step:
            self.action(self.control)


def test_val_is_scored_during_training_and_test_after_it() -> None:
    result = run(VAL, TEST, metadata={"success_metric": "pass@1"})
    [trained] = result.runs
    assert result.exit_code == 0
    assert scored_steps() == [4, 8, 10]
    assert scored_steps("test") == [10]
    assert {"val/words/pass@1", "val/words/pass@1/stderr", "test/words/pass@1"} <= set(trained.metrics)
    assert trained.notes.selection_metric == "val/words/pass@1"
    assert trained.notes.selection is None
    [described, _] = json.loads(Path("outputs/e/r/benchmarks.json").read_text(encoding="utf-8"))
    assert described["sha256"]
    assert described["tasks"] == 5


def test_every_scored_step_has_a_checkpoint_and_the_best_of_them_is_chosen_by_val() -> None:
    [trained] = run(VAL, steps=24).runs
    scores = json.loads(Path("outputs/e/r/scores.json").read_text(encoding="utf-8"))
    values = {int(step): found["val/words/pass@1"] for step, found in scores.items()}
    best = max(values.values())
    first = min(step for step, value in values.items() if value == best)
    assert f"step{first:06d}" in trained.artifacts["best_checkpoint"]


def test_a_test_entry_never_selects_even_when_it_runs_in_the_loop() -> None:
    [trained] = run({**TEST, "run_every": 4}).runs
    assert scored_steps("test") == [4, 8, 10]
    assert trained.notes.selection_metric == "loss"
    assert "no benchmark has split val" in (trained.notes.selection or "")


def test_a_metric_of_which_less_is_better_selects_the_least() -> None:
    success = {"name": "tokens_per_task", "mode": "min"}
    [trained] = run({**VAL, "metrics": ["pass@1", "tokens_per_task"]}, metadata={"success_metric": success}).runs
    assert trained.notes.selection_metric == "val/words/tokens_per_task"
    scores = json.loads(Path("outputs/e/r/scores.json").read_text(encoding="utf-8"))
    least = min(scores, key=lambda step: (scores[step]["val/words/tokens_per_task"], int(step)))
    assert f"step{int(least):06d}" in trained.artifacts["best_checkpoint"]


def test_training_continues_while_a_benchmark_is_scored() -> None:
    reached = threading.Event()

    @register_agent("patient")
    class Patient:
        """Answers only when training has gone on."""

        name = "patient"

        async def run(self, task: HarborTask, policy: Any, environment: Any) -> list[dict[str, Any]]:
            await asyncio.to_thread(reached.wait, 60)
            assert reached.is_set()
            return [(await policy.act([{"role": "user", "content": task.instruction}])).message]

    entry = {**VAL, "agent": {"kind": "patient"}}
    result = run(entry, watchers=[lambda: AtStep(7, lambda control: reached.set())])
    assert result.exit_code == 0
    assert scored_steps() == [4, 8, 10]


def test_an_evaluation_that_fails_leaves_the_run_completed_and_unscored() -> None:
    @register_verifier("moody")
    def moody(completion: str, expected: Any) -> float:
        raise RuntimeError("not today")

    for name, words in (("bad", "ab"), ("worse", "cd")):
        bad = [task(words[0], words[0].upper()), task(words[1], words[1].upper(), "moody")]
        Path(f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in bad), encoding="utf-8")
    result = run({**VAL, "path": "bad.jsonl"}, {**TEST, "path": "worse.jsonl"})
    [trained] = result.runs
    assert trained.status == "completed"
    assert result.exit_code == 2
    assert "val/words: 1 of 2 tasks could not be scored" in (trained.notes.unscored or "")
    assert "not today" in (trained.notes.unscored or "")
    assert "test/words" in (trained.notes.unscored or "")
    assert "val/words/pass@1" not in trained.metrics
    assert not Path("outputs/e/r/scores.json").exists()
    assert len(trained.notes.scoring_problems or []) == 4


def test_a_scoring_that_cannot_be_made_up_for_leaves_the_run_unscored() -> None:
    """A run continues from a checkpoint that names a sampler to score, and that sampler is damaged."""
    stopped = run(VAL, watchers=[lambda: AtStep(5, lambda control: control.stop("enough", interrupted=True))])
    assert stopped.runs[0].status == "cancelled"
    [pending] = Path("outputs/e/r").glob("checkpoints/*step000004*/sampler*")
    for file in pending.rglob("*"):
        if file.is_file():
            file.write_bytes(b"damaged")
    result = run(VAL, resume=True)
    [trained] = result.runs
    assert trained.status == "completed"
    assert "after step 4" in (trained.notes.unscored or "")
    assert result.exit_code == 2


def test_training_that_fails_does_not_wait_for_a_scoring() -> None:
    @register_agent("endless")
    class Endless:
        name = "endless"

        async def run(self, task: HarborTask, policy: Any, environment: Any) -> list[dict[str, Any]]:
            await asyncio.sleep(3600)
            return []

    class Breaks(SFT):
        async def build_batch(self, step_idx: int) -> TrainingBatch:
            if step_idx == 6:
                raise RuntimeError("out of luck")
            return await super().build_batch(step_idx)

    register_algorithm("breaks")(Breaks)
    failing = config({**VAL, "agent": {"kind": "endless"}})
    assert failing.run is not None
    broken = failing.run.model_copy(update={"algorithm": failing.run.algorithm.model_copy(update={"kind": "breaks"})})
    result = Experiment(failing.model_copy(update={"run": broken})).run()
    assert result.runs[0].status == "failed"
    assert "out of luck" in str(result.runs[0].error)
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("evsys-scoring")]


def test_a_rehearsal_scores_a_few_tasks_and_asks_no_one_else() -> None:
    dry = as_dry_run(config({**VAL, "models": ["base", "openai:gpt"]}))
    assert dry.metadata.benchmark[0].n_tasks == 4
    assert dry.metadata.benchmark[0].models == ["base"]
    assert Experiment(dry).run().exit_code == 0


def test_resume_scores_what_could_not_be_scored_and_nothing_else() -> None:
    mood = {"good": False}
    prompts: list[str] = []

    @register_verifier("moody")
    def moody(completion: str, expected: Any) -> float:
        prompts.append(completion)
        if not mood["good"]:
            raise RuntimeError("not today")
        return 1.0

    for name, words in (("bad", "ab"), ("worse", "cd")):
        bad = [task(words[0], words[0].upper()), task(words[1], words[1].upper(), "moody")]
        Path(f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in bad), encoding="utf-8")
    entries = ({**VAL, "path": "bad.jsonl"}, {**TEST, "path": "worse.jsonl"})
    assert run(*entries).exit_code == 2
    mood["good"] = True
    prompts.clear()
    result = run(*entries, resume=True)
    assert result.exit_code == 0
    # The check of the verifier asks with an empty answer, each set is scored once, and the audit scores what the
    # conclusion rests on.
    assert len(prompts) == 1 + 2 + 1
    assert scored_steps() == [4, 8, 10]
    assert scored_steps("test") == [10]
    assert result.runs[0].metrics["test/words/tasks"] == 2


def test_baselines_are_scored_once_for_all_runs_and_never_chosen() -> None:
    entry = {**TEST, "models": ["base", "mock:other"]}
    result = run(entry, n_repeats=2)
    for trained in result.runs:
        assert {f"baseline/test/words/{name}/pass@1" for name in ("base", "mock:other")} <= set(trained.metrics)
    journals = {path.name: path for path in Path("outputs/e/.baselines").glob("*.jsonl")}
    assert len(journals) == 3  # the untrained model of each seed, and the other model
    [other] = [path for name, path in journals.items() if "other" in name]
    assert len(other.read_bytes().splitlines()) == 6
    assert scored_steps("baseline", "outputs/e/r__seed42") == [0, 0]


def test_a_base_model_without_a_seed_is_scored_once_for_all_seeds() -> None:
    class Fixed(MockBackend):
        name = "fixed"
        seeded_base = False

    with REGISTRIES["backend"].isolated():
        register_backend("fixed")(Fixed)
        changed = config({**TEST, "models": ["base"]}, n_repeats=2)
        runs = [one.model_copy(update={"backend": BackendConfig(kind="fixed")}) for one in changed.all_runs()]
        result = Experiment(changed.model_copy(update={"run": None, "runs": runs})).run()
    assert len(result.runs) == 2
    assert all("baseline/test/words/base/pass@1" in trained.metrics for trained in result.runs)
    [journal] = Path("outputs/e/.baselines").glob("*.jsonl")
    assert len(journal.read_bytes().splitlines()) == 6


def test_a_baseline_that_fails_harms_no_one_and_is_reported() -> None:
    result = run({**TEST, "models": ["openai:gpt"]})
    [trained] = result.runs
    assert trained.notes.unscored is None
    assert "baseline/test/words/openai:gpt" in (trained.notes.scoring_problems or [""])[0]


def test_the_model_is_scored_in_the_harness_it_was_trained_in() -> None:
    used: list[str] = []

    @register_agent("spy")
    class Spy:
        name = "spy"

        class Config(BaseModel):
            label: str = "own"

        def __init__(self, **params: Any) -> None:
            self.label = self.Config(**params).label

        async def run(self, task: HarborTask, policy: Any, environment: Any) -> AgentResult:
            used.append(f"{self.label} {task.task_id}")
            reward = len(used) % 2  # two attempts must differ, or nothing is learned from them
            return AgentResult([(await policy.act([{"role": "user", "content": task.instruction}])).message], reward)

    base = config({**TEST, "n_tasks": 1})
    assert base.run is not None
    params = {"max_steps": 1, "batch_size": 1, "group_size": 2, "agent": {"kind": "spy", "params": {"label": "rl"}}}
    update = {
        "data": base.run.data.model_copy(update={"path": "val.jsonl", "transforms": []}),  # pyright: ignore[reportOptionalMemberAccess]
        "algorithm": base.run.algorithm.model_copy(update={"kind": "rl", "params": params}),
    }
    trained = base.model_copy(update={"run": base.run.model_copy(update=update)})
    assert Experiment(trained).run().exit_code == 0
    assert "rl f" in used
    used.clear()
    override = {**TEST, "n_tasks": 1, "agent": {"kind": "spy"}}
    assert run(override, steps=1).exit_code == 0
    assert used == ["own f"]


@pytest.mark.parametrize("stop_at", [5, 6, 7, 9])
def test_a_run_interrupted_during_a_scoring_ends_like_one_that_was_not(
    stop_at: int, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    patience = {"kind": "early_stopping", "params": {"metric": "val/words/pass@1", "mode": "max", "patience": 50}}
    entries = (VAL, {**VAL, "name": "often", "run_every": 2}, TEST)
    assert run(*entries, callbacks=[patience]).exit_code == 0
    expected = record_of(Path())
    other = tmp_path_factory.mktemp("broken") / "off"
    make_project(other)
    monkeypatch.chdir(other)
    stop = [lambda: AtStep(stop_at, lambda control: control.stop("enough", interrupted=True))]
    assert run(*entries, callbacks=[patience], watchers=stop).runs[0].status == "cancelled"
    assert run(*entries, callbacks=[patience], resume=True).exit_code == 0
    assert record_of(Path()) == expected


def test_answers_of_a_scoring_that_was_interrupted_are_kept_and_not_requested_again() -> None:
    prompts: list[str] = []
    hangs = threading.Event()
    hangs.set()

    @register_agent("hangs")
    class Hangs:
        async def run(self, task: HarborTask, policy: Any, environment: Any) -> list[dict[str, Any]]:
            prompts.append(task.task_id)
            if hangs.is_set() and task.task_id in "de":
                await asyncio.Event().wait()
            return [(await policy.act([{"role": "user", "content": task.instruction}])).message]

    def stop_after_three_answers(control: RunControl) -> None:
        path = Path("outputs/e/r/benchmarks/val-words/step000004.jsonl")
        until = time.monotonic() + 60
        while not path.exists() or path.read_bytes().count(b'"task_id"') < 3:
            assert time.monotonic() < until
            time.sleep(0.01)
        control.stop("cancelled", interrupted=True)

    entry = {**VAL, "agent": {"kind": "hangs"}}
    assert run(entry, watchers=[lambda: AtStep(6, stop_after_three_answers)]).runs[0].status == "cancelled"
    assert sorted(prompts) == list("abcde")
    hangs.clear()
    prompts.clear()
    [finished] = run(entry, resume=True).runs
    assert finished.status == "completed"
    assert finished.notes.unscored is None
    assert sorted(prompts[:2]) == ["d", "e"], "of the scoring after step 4, what was missing"
    assert sorted(prompts[2:]) == sorted("abcde" * 2), "those after steps 8 and 10"


def test_a_score_is_shown_when_it_is_there_and_recorded_at_its_fixed_moment() -> None:
    calls: list[tuple[str, int]] = []

    class Listens(Callback):
        def on_scored(self, record: Any) -> None:
            calls.append(("scored", record.step))

        def on_eval(self, record: Any) -> None:
            calls.append(("eval", record.step))

    def wait(control: RunControl) -> None:
        until = time.monotonic() + 60
        while ("scored", 4) not in calls and time.monotonic() < until:
            time.sleep(0.01)
        calls.append(("step", 5))

    assert run(VAL, watchers=[Listens, lambda: AtStep(5, wait)]).exit_code == 0
    assert calls[:3] == [("scored", 4), ("step", 5), ("eval", 4)]
    assert [step for what, step in calls if what == "scored"] == [4, 8, 10]
    assert [step for what, step in calls if what == "eval"] == [4, 8, 10]


@pytest.mark.parametrize("share", [0.2, 1.0])
def test_a_share_of_the_time_changes_no_score(share: float) -> None:
    [trained] = run({**VAL, "share": share, "concurrency": 1}).runs
    assert scored_steps() == [4, 8, 10]
    assert trained.notes.unscored is None


@pytest.mark.parametrize(
    ("entry", "path", "message"),
    [
        ({"metrics": ["pass@l"]}, "metadata.benchmark[0].metrics[0]", "not registered"),
        ({"metrics": ["pass@3"]}, "metadata.benchmark[0].metrics[0]", "needs at least 3 attempts"),
        ({"engine": "warp"}, "metadata.benchmark[0].engine", "no rollout engine 'warp'"),
        ({"models": ["opnai:gpt"]}, "metadata.benchmark[0].models[0]", "not registered"),
        ({"path": "nowhere.jsonl"}, "metadata.benchmark[0]", "nowhere.jsonl"),
    ],
)
def test_mistakes_are_refused_before_anything_is_spent(entry: dict[str, Any], path: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        run({**VAL, **entry})
    [problem] = caught.value.problems
    assert problem.path == path
    assert message in str(caught.value)
    assert not Path("outputs").exists()


def test_a_scoring_that_comes_too_late_starts_nothing(project: Path) -> None:
    """The thread that scores may hold its engine when the run is stopped, and ask it for the first time then."""
    metadata = Metadata.model_validate({"hypothesis": "h", "benchmark": {"path": "val.jsonl", "run_every": 1}})
    nobody: Any = None
    run_dir = project / "outputs" / "e" / "r"
    run_dir.mkdir(parents=True)
    [first] = plan_benchmarks(metadata, SFT(), seed=0)
    benchmarks = RunBenchmarks([first], nobody, nobody, nobody, run_dir, 1, "tiny")
    engine = benchmarks._engine(first)  # pyright: ignore[reportPrivateUsage]
    benchmarks.close()
    with pytest.raises(EvalError, match="the run has ended"):
        engine.submit([])
    assert not [thread for thread in threading.enumerate() if thread.name == "evsys-rollouts"]
