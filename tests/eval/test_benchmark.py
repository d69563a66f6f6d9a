"""A benchmark scores any model, resumes after a kill, and never calls a failure of ours a bad answer."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from evsys_sdk import HarborTask, InProcessVerifier, register_agent, register_verifier
from evsys_sdk.errors import DataError, EvalError
from evsys_sdk.eval.benchmark import Benchmark, ScoreSettings
from evsys_sdk.eval.predictions import Prediction, PredictionJournal
from evsys_sdk.eval.scored_model import SamplerModel, Sampling
from evsys_sdk.rollouts.engine import EngineLimits
from evsys_sdk.rollouts.harness import AgentSpec, build_harness


class Parrot:
    """An inference client that answers with the last word, and counts."""

    name = "parrot"

    def __init__(self, **broken: int) -> None:
        self.asked: list[str] = []
        self.broken = broken
        """Prompt -> how often it fails before it answers."""

    def generate(self, *, prompt: str, max_tokens: int, temperature: float, stop: Sequence[str] | None = None) -> str:
        self.asked.append(prompt)
        word = prompt.split()[-1]
        if self.broken.get(word, 0) > 0:
            self.broken[word] -= 1
            raise ConnectionError("the server is away")
        return word


def task(word: str, expected: str | None = None, **metadata: Any) -> HarborTask:
    return HarborTask(word, f"say {word}", InProcessVerifier("exact_match", expected=expected or word), metadata)


TASKS = [task("a", size="small"), task("b", size="small"), task("c", "wrong", size="large"), task("d", size="large")]
BENCHMARK = Benchmark.of(TASKS, name="letters")
ONCE = EngineLimits(attempts=1)


def test_scores_have_a_standard_error_and_a_breakdown() -> None:
    result = BENCHMARK.score(Parrot(), ScoreSettings(metrics=["pass@1", "mean_reward"], breakdown_keys=["size"]))
    assert result.metrics["pass@1"].value == 0.75
    assert result.metrics["pass@1"].stderr == pytest.approx(0.25)
    assert result.breakdown["size"]["small"]["pass@1"].value == 1.0
    assert result.breakdown["size"]["large"]["pass@1"].value == 0.5
    assert result.flat_metrics["size=large/pass@1"] == 0.5
    assert [prediction.text for prediction in result.predictions] == ["a", "b", "c", "d"]
    assert result.task_rewards == [[1.0], [1.0], [0.0], [1.0]]
    assert result.problem is None


def test_a_failure_of_ours_is_no_zero_and_its_task_is_reported() -> None:
    result = BENCHMARK.score(Parrot(c=9), ScoreSettings(limits=ONCE))
    assert result.metrics["pass@1"].value == 1.0
    assert result.metrics["pass@1"].n_tasks == 3
    assert "the server is away" in result.unscored["c"]
    assert result.n_failed == 1
    assert result.problem is not None
    assert "1 of 4 tasks could not be scored" in result.problem


def test_a_task_with_one_sample_left_is_scored_on_it() -> None:
    result = BENCHMARK.score(Parrot(a=1), ScoreSettings(samples=2, limits=ONCE))
    assert result.unscored == {}
    assert result.n_failed == 1
    assert result.task_rewards[0] == [1.0]
    assert sorted(map(str, result.per_task()["samples"][0])) == ["1.0", "None"]


def test_a_metric_that_cannot_be_computed_is_a_problem_and_not_a_number() -> None:
    result = BENCHMARK.score(Parrot(), ScoreSettings(metrics=["pass@1", "pass@3"]))
    assert set(result.metrics) == {"pass@1"}
    assert result.problem is not None
    assert "pass@3" in result.problem


def test_a_verifier_that_raises_leaves_the_task_unscored() -> None:
    @register_verifier("moody")
    def moody(completion: str, expected: Any) -> float:
        raise RuntimeError("not today")

    tasks = [task("a"), HarborTask("m", "say m", InProcessVerifier("moody"))]
    result = Benchmark.of(tasks, name="n").score(Parrot(), ScoreSettings(limits=ONCE))
    assert "not today" in result.unscored["m"]
    assert result.metrics["pass@1"].value == 1.0


def test_scoring_again_attempts_only_what_has_no_reward_yet(tmp_path: Path) -> None:
    journal = tmp_path / "predictions.jsonl"
    first = BENCHMARK.score(Parrot(c=9), ScoreSettings(limits=ONCE), journal=journal)
    assert list(first.unscored) == ["c"]
    second = Parrot()
    result = BENCHMARK.score(second, ScoreSettings(limits=ONCE), journal=journal)
    assert second.asked == ["say c"]
    assert result.unscored == {}
    assert result.metrics["pass@1"].value == 0.75


def test_a_half_written_last_line_is_attempted_again(tmp_path: Path) -> None:
    journal = tmp_path / "predictions.jsonl"
    BENCHMARK.score(Parrot(), journal=journal)
    whole = journal.read_bytes()
    journal.write_bytes(whole[:-20])
    lost = json.loads(whole.splitlines()[-1])["task_id"]
    again = Parrot()
    result = BENCHMARK.score(again, journal=journal)
    assert again.asked == [f"say {lost}"]
    assert len(result.predictions) == 4
    assert all(json.loads(line) for line in journal.read_bytes().splitlines())


def test_a_journal_of_only_a_half_written_first_line_starts_again(tmp_path: Path) -> None:
    journal = tmp_path / "predictions.jsonl"
    journal.write_text('{"scoring": {"bench', encoding="utf-8")
    assert len(BENCHMARK.score(Parrot(), journal=journal).predictions) == 4
    assert "scoring" in json.loads(journal.read_text(encoding="utf-8").splitlines()[0])


@pytest.mark.parametrize("what", ["temperature", "model"])
def test_another_scoring_never_reuses_predictions_and_keeps_the_old_ones(what: str, tmp_path: Path) -> None:
    journal = tmp_path / "predictions.jsonl"
    BENCHMARK.score(Parrot(), journal=journal)
    old = journal.read_bytes()
    client, settings = Parrot(), ScoreSettings()
    if what == "temperature":
        settings = ScoreSettings(sampling=Sampling(temperature=0.5))
    else:
        client.name = "cockatoo"  # pyright: ignore[reportAttributeAccessIssue]
    BENCHMARK.score(client, settings, journal=journal)
    assert len(client.asked) == 4
    assert (tmp_path / "predictions.1.jsonl").read_bytes() == old


def test_only_tasks_whose_content_changed_are_attempted_again(tmp_path: Path) -> None:
    journal = tmp_path / "predictions.jsonl"
    BENCHMARK.score(Parrot(), journal=journal)
    client = Parrot()
    changed = Benchmark.of([*TASKS[:2], task("c", "c", size="large"), task("e")], name="letters")
    result = changed.score(client, journal=journal)
    assert client.asked == ["say c", "say e"]
    assert result.metrics["pass@1"].value == 1.0


def test_more_samples_add_to_those_that_are_there(tmp_path: Path) -> None:
    journal = tmp_path / "predictions.jsonl"
    BENCHMARK.score(Parrot(), journal=journal)
    client = Parrot()
    result = BENCHMARK.score(client, ScoreSettings(samples=3), journal=journal)
    assert len(client.asked) == 8
    assert len(result.predictions) == 12


def test_a_damaged_line_in_the_middle_costs_only_its_own_task(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    journal = tmp_path / "predictions.jsonl"
    BENCHMARK.score(Parrot(), journal=journal)
    lines = journal.read_text(encoding="utf-8").splitlines()
    lost = json.loads(lines[2])["task_id"]
    lines[2] = lines[2][:30]
    journal.write_text("\n".join(lines) + "\n", encoding="utf-8")
    again = Parrot()
    BENCHMARK.score(again, journal=journal)
    assert again.asked == [f"say {lost}"]
    assert "predictions.jsonl:3" in caplog.text


def test_the_harness_drives_the_model_and_the_conversation_is_kept() -> None:
    @register_agent("twice")
    class Twice:
        name = "twice"

        async def run(self, task: HarborTask, policy: Any, environment: Any) -> list[dict[str, Any]]:
            first = await policy.act([{"role": "user", "content": "think first"}])
            second = await policy.act([{"role": "user", "content": task.instruction}])
            return [first.message, second.message]

    settings = ScoreSettings(harness=build_harness(AgentSpec(kind="twice")))
    result = BENCHMARK.score(Parrot(), settings)
    assert result.metrics["pass@1"].value == 0.75
    assert [message["content"] for message in result.predictions[0].messages] == ["first", "a"]


async def test_it_scores_inside_a_running_loop_and_awaited() -> None:
    assert BENCHMARK.score(Parrot()).metrics["pass@1"].value == 0.75
    assert (await BENCHMARK.score_async(Parrot())).metrics["pass@1"].value == 0.75


def test_a_sampler_is_scored_with_its_own_seeds(tmp_path: Path) -> None:
    from evsys_sdk.backends.client import ModelSpec
    from evsys_sdk.backends.mock.backend import MockBackend
    from evsys_sdk.inference.renderer import get_renderer

    handles = MockBackend().prepare(model=ModelSpec("tiny"), run_dir=tmp_path)
    client = handles["training_client"]
    model = SamplerModel(client.sampler().result(), get_renderer(client.tokenizer), 4096, "tiny")
    settings = ScoreSettings(samples=2, sampling=Sampling(max_tokens=4, temperature=1.0))
    first, second = BENCHMARK.score(model, settings), BENCHMARK.score(model, settings)
    MockBackend().teardown(handles)
    texts = [prediction.text for prediction in first.predictions]
    assert texts == [prediction.text for prediction in second.predictions]
    assert len(set(texts)) > 2
    assert first.tokens > 0


def test_only_the_first_tasks_are_scored_where_that_is_requested() -> None:
    assert len(BENCHMARK.score(Parrot(), ScoreSettings(n_tasks=2)).predictions) == 2


def test_a_benchmark_is_the_same_by_content_whatever_its_name(tmp_path: Path) -> None:
    from evsys_sdk import to_dict

    path = tmp_path / "tasks.jsonl"
    path.write_text("".join(json.dumps(to_dict(one)) + "\n" for one in TASKS), encoding="utf-8")
    loaded = Benchmark.load(path=path, name="other")
    assert (loaded.name, loaded.sha256) == ("other", BENCHMARK.sha256)
    assert loaded.id is not None
    assert Benchmark.load(id=loaded.id).sha256 == loaded.sha256


@pytest.mark.parametrize(("tasks", "message"), [([], "has no tasks"), ([TASKS[0], TASKS[0]], "'a' twice")])
def test_tasks_that_cannot_be_distinguished_are_refused(tasks: list[HarborTask], message: str) -> None:
    with pytest.raises(DataError, match=message):
        Benchmark.of(tasks, name="n")


def test_what_cannot_answer_cannot_be_scored() -> None:
    with pytest.raises(EvalError, match="int cannot be scored"):
        BENCHMARK.score(3)


def test_progress_counts_what_was_there_before(tmp_path: Path) -> None:
    journal = tmp_path / "p.jsonl"
    BENCHMARK.score(Parrot(), ScoreSettings(n_tasks=3), journal=journal)
    counts: list[tuple[int, int]] = []
    BENCHMARK.score(Parrot(), journal=journal, progress=lambda done, total: counts.append((done, total)))
    assert counts == [(3, 4), (4, 4)]


def test_a_journal_in_memory_needs_no_file() -> None:
    journal = PredictionJournal.open(None, {})
    journal.append(Prediction("t", 0, "ok", 1.0, task="d"))
    matches = journal.find("t", "d", 0)
    assert matches is not None
    assert matches.reward == 1.0
    assert journal.find("t", "another content", 0) is None


def test_a_folder_of_harbor_tasks_is_a_benchmark(tmp_path: Path) -> None:
    for name in ("one", "two"):
        folder = tmp_path / "suite" / name
        (folder / "tests").mkdir(parents=True)
        (folder / "task.toml").write_text("[metadata]\n", encoding="utf-8")
        (folder / "instruction.md").write_text(f"Do {name}.\n", encoding="utf-8")
        (folder / "tests" / "test.sh").write_text("exit 0\n", encoding="utf-8")
    suite = Benchmark.load(path=tmp_path / "suite")
    assert (suite.name, [task.instruction for task in suite.tasks]) == ("suite", ["Do one.", "Do two."])
    assert len(Benchmark.load(path=tmp_path / "suite" / "one").tasks) == 1
