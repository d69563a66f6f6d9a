"""Asking a model: retries, failures that are counted, answers that survive a killed process, clients of any kind."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar

import pytest

from evsys_sdk.errors import DataError, EvalError, EvsysAuthError
from evsys_sdk.eval import DEFAULT_SYSTEM, AliasMatcher, EvalArtifacts, EvalRow, ModelEvalConfig, evaluate_model
from evsys_sdk.inference.client import ChatClient, Completion
from evsys_sdk.inference.clients.sampled import MockClient

ROWS = [{"id": name, "query": f"please {name}", "tool_slug": f"{name}_it"} for name in ("send", "call", "book")]
QUICK = ModelEvalConfig(retry_attempts=3, retry_base_delay_s=0.0)


class Generates:
    """A client of another package: `generate`, and nothing else."""

    name: ClassVar[str] = "generates"

    def __init__(self, answer: Callable[[str], str]) -> None:
        self.answer = answer
        self.prompts: list[str] = []
        self.stops: list[Any] = []

    def generate(self, *, prompt: str, max_tokens: int, temperature: float, stop: Sequence[str] | None = None) -> str:
        self.prompts.append(prompt)
        self.stops.append(stop)
        return self.answer(prompt)


class Chats(ChatClient):
    """A client with `complete`."""

    name: ClassVar[str] = "chats"

    def __init__(self, answer: Callable[[list[Any], int], Completion]) -> None:
        super().__init__()
        self.answer = answer
        self.asked: list[list[Any]] = []
        self.seeds: list[int | None] = []
        self.busy = self.most_busy = 0

    async def complete(self, messages: Sequence[Any], **options: Any) -> list[Completion]:
        self.asked.append(list(messages))
        self.seeds.append(options["seed"])
        self.busy += 1
        self.most_busy = max(self.most_busy, self.busy)
        for _ in range(200):  # long enough for whoever may be asked next to this one
            if self.busy > 1:
                break
            await asyncio.sleep(0.001)
        self.busy -= 1
        return [self.answer(list(messages), len(self.asked))]


def right(prompt: str) -> str:
    word = prompt.split("please ")[1].split()[0]
    return f"<answer>{word.removesuffix('<|im_end|>')}_it</answer>"


def said(text: str, **message: Any) -> Completion:
    return Completion(text, {"role": "assistant", "content": text, **message}, "stop", cost_usd=0.5)


def value(artifacts: EvalArtifacts) -> float | None:
    score = artifacts.summary.pass_at_1
    return score and score.value


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (path / "predictions.jsonl").read_text("utf-8").splitlines()]


def test_a_client_with_only_generate_is_scored() -> None:
    client = Generates(right)
    artifacts = evaluate_model(client, ROWS)
    assert value(artifacts) == 1.0
    assert client.prompts[0] == f"system: {DEFAULT_SYSTEM}\n\nuser: please send\n\nassistant:"
    assert artifacts.output_dir is None
    assert artifacts.summary.cost_usd is None


def test_a_client_with_complete_gets_messages_and_its_own_seed_for_each_attempt() -> None:
    client = Chats(lambda messages, _: said(right(messages[-1]["content"])))
    config = ModelEvalConfig(max_attempts=2, temperature=1.0, batch_size=2)
    artifacts = evaluate_model(client, ROWS, config=config)
    assert [message["role"] for message in client.asked[0]] == ["system", "user"]
    assert len(set(client.seeds)) == 6
    assert client.most_busy == 2
    assert (artifacts.summary.cost_usd, artifacts.summary.n_attempts) == (3.0, 6)


def test_it_works_inside_a_running_event_loop() -> None:
    async def notebook() -> float | None:
        return value(evaluate_model(Generates(right), ROWS))

    assert asyncio.run(notebook()) == 1.0


def test_messages_are_asked_as_they_are_and_system_can_be_left_out() -> None:
    client = Chats(lambda *_: said("x"))
    turns = [{"role": "user", "content": "hi"}]
    evaluate_model(client, [{"messages": turns, "target": "x"}])
    evaluate_model(client, [{"query": "hi", "target": "x"}], config=ModelEvalConfig(system=None))
    assert client.asked == [turns, turns]


@pytest.mark.parametrize(
    ("prompt_format", "end"),
    [
        ("qwen", "<|im_start|>assistant\n"),
        ("qwen3", "<|im_start|>assistant\n"),
        ("qwen3_no_think", "</think>\n\n"),
    ],
)
def test_a_raw_client_can_be_given_the_text_that_qwen_reads(prompt_format: Any, end: str) -> None:
    client = Generates(right)
    config = ModelEvalConfig(prompt_format=prompt_format, system=None)
    assert value(evaluate_model(client, ROWS, config=config)) == 1.0
    assert client.prompts[0].startswith("<|im_start|>user\nplease send<|im_end|>\n<|im_start|>assistant\n")
    assert client.prompts[0].endswith(end)
    assert client.stops[0] == ["<|im_end|>"]


def test_a_chat_client_is_not_given_a_formatted_text() -> None:
    with pytest.raises(EvalError, match="Chats takes messages"):
        evaluate_model(Chats(lambda *_: said("x")), ROWS, config=ModelEvalConfig(prompt_format="qwen"))
    turns = [{"role": "tool", "content": "4"}]
    with pytest.raises(DataError, match=r"row 'row-1': messages\[0\].role is 'tool'"):
        evaluate_model(
            Generates(right), [{"messages": turns, "target": "x"}], config=ModelEvalConfig(prompt_format="qwen")
        )


def test_a_tool_call_next_to_the_text_is_the_prediction() -> None:
    call = {"id": "1", "type": "function", "function": {"name": "send_it", "arguments": "{}"}}
    artifacts = evaluate_model(Chats(lambda *_: said("", tool_calls=[call])), ROWS[:1])
    assert artifacts.results[0].attempts[0].info["predicted"] == "send_it"


def test_half_a_character_in_an_answer_does_not_end_the_evaluation(tmp_path: Path) -> None:
    artifacts = evaluate_model(Generates(lambda prompt: right(prompt) + "\ud83d"), ROWS, output_dir=tmp_path)
    assert (value(artifacts), lines(tmp_path)[1]["text"]) == (1.0, "<answer>send_it</answer>\\ud83d")


def test_an_error_that_passes_is_tried_again_and_is_no_failure() -> None:
    prompts: list[str] = []

    def shaky(prompt: str) -> str:
        prompts.append(prompt)
        if prompts.count(prompt) == 1:  # each question by itself: they are asked in threads
            raise ConnectionError("reset")
        return right(prompt)

    artifacts = evaluate_model(Generates(shaky), ROWS, config=QUICK)
    assert value(artifacts) == 1.0
    report = artifacts.summary.retry_report
    assert (report.calls, report.retries, report.total_failures) == (3, 3, 0)


def test_a_question_that_never_gets_an_answer_is_a_failure_and_not_a_wrong_answer(tmp_path: Path) -> None:
    def broken(prompt: str) -> str:
        if "call" in prompt:
            raise TimeoutError("too late")
        return right(prompt)

    artifacts = evaluate_model(Generates(broken), ROWS, config=QUICK, output_dir=tmp_path)
    summary = artifacts.summary
    assert (value(artifacts), summary.n_failed_attempts, summary.n_unscored_rows) == (1.0, 1, 1)
    [failure] = summary.retry_report.failures
    assert (failure.what, failure.attempts, failure.last_error) == (
        "task 'call', sample 1",
        3,
        "TimeoutError: too late",
    )
    failed = "the agent failed: TimeoutError: too late"
    assert [line["error"] for line in lines(tmp_path)[1:]] == [None, failed, None]
    assert "Excluded: 1 failed attempt." in summary.notes[0]
    assert json.loads((tmp_path / "summary.json").read_text("utf-8"))["retry_report"]["total_failures"] == 1
    again = Generates(right)
    repaired = evaluate_model(again, ROWS, config=QUICK, output_dir=tmp_path)
    assert (len(again.prompts), value(repaired), repaired.summary.n_failed_attempts) == (1, 1.0, 0)


def test_refused_credentials_end_it_at_once() -> None:
    def refused(prompt: str) -> str:
        raise EvsysAuthError("no key")

    client = Generates(refused)
    with pytest.raises(EvsysAuthError, match="no key"):
        evaluate_model(client, ROWS, config=ModelEvalConfig(batch_size=1))
    assert len(client.prompts) == 1


def test_keys_do_not_reach_the_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTHER_API_KEY", "sk-very-secret")

    def leaky(prompt: str) -> str:
        raise ValueError("bad key sk-very-secret")

    evaluate_model(Generates(leaky), ROWS, output_dir=tmp_path / "scored")
    written = "".join(file.read_text("utf-8") for file in tmp_path.rglob("*") if file.is_file())
    assert "sk-very-secret" not in written
    assert "[redacted]" in written


class Counting(ChatClient):
    """The mock model, counting its calls."""

    name: ClassVar[str] = "counting"

    def __init__(self) -> None:
        super().__init__()
        self.model, self.calls = MockClient(), 0

    async def complete(self, messages: Sequence[Any], **options: Any) -> list[Completion]:
        self.calls += 1
        return await self.model.complete(messages, **options)


def stop_after(answers: int) -> Callable[[int, int, int], None]:
    """Ends the process, as Ctrl-C does, once so many answers are there."""

    def tell(done: int, total: int, failed: int) -> None:
        if done == answers:
            raise KeyboardInterrupt

    return tell


@pytest.mark.parametrize("torn", [b"", b'{"task_id": "book", "sam'])
def test_a_killed_evaluation_continues_where_it_was(torn: bytes, tmp_path: Path) -> None:
    config = ModelEvalConfig(max_attempts=2, temperature=1.0, batch_size=1, max_tokens=16)
    whole = evaluate_model(Counting(), ROWS, config=config)
    with pytest.raises(KeyboardInterrupt):
        evaluate_model(Counting(), ROWS, config=config, output_dir=tmp_path, model="m", progress=stop_after(3))
    assert not (tmp_path / "summary.json").exists()
    with (tmp_path / "predictions.jsonl").open("ab") as file:
        file.write(torn)
    again = Counting()
    resumed = evaluate_model(again, ROWS, config=config, output_dir=tmp_path, model="m")
    assert again.calls == 3
    assert answers_of(resumed) == answers_of(whole)
    assert [(line["task_id"], line["sample"]) for line in lines(tmp_path)[1:]] == [
        (row["id"], sample) for row in ROWS for sample in (0, 1)
    ]


def answers_of(artifacts: EvalArtifacts) -> list[list[str | None]]:
    return [[attempt.text for attempt in result.attempts] for result in artifacts.results]


def test_more_attempts_more_rows_or_other_aliases_keep_the_answers_that_are_there(tmp_path: Path) -> None:
    client = Generates(right)
    evaluate_model(client, ROWS[:2], output_dir=tmp_path)
    evaluate_model(client, ROWS, config=ModelEvalConfig(max_attempts=2), output_dir=tmp_path)
    assert len(client.prompts) == 6
    moved = [{**row, "tool_slug": "other"} for row in ROWS]
    matcher = AliasMatcher({"other": ["send_it"]})
    fewer = evaluate_model(client, moved[:1], matcher, output_dir=tmp_path)
    assert (len(client.prompts), value(fewer), fewer.summary.n_attempts) == (6, 1.0, 1)
    records = lines(tmp_path)[1:]
    assert len(records) == 6
    assert (records[-1]["info"]["target"], records[-1]["info"]["match"]) == ("other", "alias")


@pytest.mark.parametrize("change", ["model", "temperature"])
def test_another_evaluation_in_the_same_folder_puts_the_old_one_aside(change: str, tmp_path: Path) -> None:
    client = Generates(right)
    evaluate_model(client, ROWS, output_dir=tmp_path, model="one")
    before = (tmp_path / "predictions.jsonl").read_bytes()
    config = ModelEvalConfig(temperature=0.5 if change == "temperature" else 0.0)
    evaluate_model(client, ROWS, config=config, output_dir=tmp_path, model="two" if change == "model" else "one")
    assert len(client.prompts) == 6
    assert (tmp_path / "predictions.1.jsonl").read_bytes() == before


def test_another_question_under_the_same_id_is_asked(tmp_path: Path) -> None:
    client = Generates(right)
    evaluate_model(client, ROWS, output_dir=tmp_path)
    rows = [{**ROWS[0], "query": "now please send"}, *ROWS[1:]]
    evaluate_model(client, rows, output_dir=tmp_path)
    assert len(client.prompts) == 4
    assert "now please send" in client.prompts[-1]


def test_a_damaged_line_is_asked_again_and_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    client = Generates(right)
    evaluate_model(client, ROWS, output_dir=tmp_path)
    path = tmp_path / "predictions.jsonl"
    text = path.read_text("utf-8").splitlines(keepends=True)
    path.write_text("".join([*text[:2], "rubbish\n", *text[3:]]), encoding="utf-8")
    assert value(evaluate_model(client, ROWS, output_dir=tmp_path)) == 1.0
    assert len(client.prompts) == 4
    assert f"{path}:3: this line is damaged" in caplog.text


def test_rows_at_hand_need_their_own_ids() -> None:
    row = EvalRow("x", "please send", "send_it")
    assert value(evaluate_model(Generates(right), [row])) == 1.0
    with pytest.raises(EvalError, match="two rows have the same id"):
        evaluate_model(Generates(right), [row, row])


def test_a_folder_that_is_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x").write_text("", encoding="utf-8")
    with pytest.raises(EvalError, match="cannot be created"):
        evaluate_model(Generates(right), ROWS, output_dir=tmp_path / "x")


def test_progress_counts_what_is_there_already(tmp_path: Path) -> None:
    evaluate_model(Generates(right), ROWS[:2], output_dir=tmp_path)
    counts: list[tuple[int, int, int]] = []
    evaluate_model(Generates(right), ROWS, output_dir=tmp_path, progress=lambda *how: counts.append(how))
    assert counts == [(2, 3, 0), (3, 3, 0)]


def test_notes_warn_of_what_makes_numbers_mean_less() -> None:
    long = Completion("A", {"role": "assistant", "content": "A"}, "length")
    matcher = AliasMatcher({"ELSEWHERE": ["B"]})
    config = ModelEvalConfig(max_attempts=2, max_tokens=7)
    notes = evaluate_model(Chats(lambda *_: long), ROWS, matcher, config=config).summary.notes
    assert [note.split()[0] for note in notes] == ["Cut", "Temperature", "No", "Every"]
    assert "max_tokens (7): 6 of 6 answers" in notes[0]


def test_two_processes_do_not_write_one_folder_at_once(tmp_path: Path) -> None:
    """Two at once in one process stand in for them: a lock belongs to the file that was opened."""
    clients = [Generates(right), Generates(right)]
    threads = [
        threading.Thread(target=evaluate_model, args=(client, ROWS), kwargs={"output_dir": tmp_path})
        for client in clients
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(len(client.prompts) for client in clients) == [0, 3]
