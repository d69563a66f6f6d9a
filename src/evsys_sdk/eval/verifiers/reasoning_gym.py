"""`reasoning_gym`: generates and scores tasks of the reasoning-gym library.

    path: "reasoning_gym:leg_counting?split=train&size=500&seed=1&max_animals=3"

A hash of the question determines its split for every seed: half of all questions are in `train`, a quarter each in
`val` and `test`. So no task occurs in two splits.
"""

from __future__ import annotations

import hashlib
import json
import warnings
from collections.abc import Iterator
from functools import lru_cache
from importlib import import_module
from importlib.metadata import version
from typing import Any, ClassVar, Literal

from pydantic import Field

from ...errors import DataError, suggest
from ...protocols import Row, VerificationResult
from ..answers.answer import AnswerParams
from ..verifier import BaseVerifier

_STREAM = 1_000_000
"""Length of the opened datasets, more than is ever read. The library seeds an entry with seed + index, so seeds are
multiples of this length, and two seeds share no entry."""
_TRIES = 20
"""Entries to generate per requested row before a generator counts as exhausted."""
_SPLITS = ("train", "train", "val", "test")


class ReasoningGymParams(AnswerParams):
    """The tasks to generate."""

    subject: str = Field(min_length=1)
    """Name of the generator, e.g. `leg_counting`."""
    knobs: dict[str, Any] = {}
    """Params of the generator, e.g. its difficulty."""
    level: int | None = Field(default=None, ge=0)
    """Level of the library's curriculum for the generator, from 0, the easiest; `knobs` override its params."""
    split: Literal["train", "val", "test"] = "train"
    """Split of the questions; no question is in two splits."""
    size: int = Field(default=500, ge=1, le=100_000)
    """Number of tasks."""
    seed: int = Field(default=0, ge=0, le=4000)
    """Seed of the generator; two seeds share no entry of its stream."""
    prompt: str = Field(default="{question}", pattern=r"\{question\}")
    """Template of the prompt; `{question}` is replaced by the question."""
    index: int = Field(default=0, ge=0)
    """Position of a task in the generator's stream, set in each row."""
    rows: Literal["tasks", "demonstrations"] = "tasks"
    """Whether rows are tasks with a verifier, or chats that end with the stored answer."""


class ReasoningGym(BaseVerifier[ReasoningGymParams]):
    """Generate tasks of reasoning-gym, and score answers with its own scorer."""

    name: ClassVar[str] = "reasoning_gym"
    Config = ReasoningGymParams

    @property
    def version(self) -> str:
        """Version of the library."""
        return version("reasoning-gym")

    def make_rows(self) -> Iterator[Row]:
        """Yield distinct tasks of the split, in the generator's order."""
        seen: set[str] = set()
        for index in range(_TRIES * self.cfg.size + 100):
            question, answer, is_valid = self._entry(index)
            key = hashlib.sha256(question.encode()).hexdigest()
            if key in seen or _SPLITS[int(key[:8], 16) % len(_SPLITS)] != self.cfg.split:
                continue
            seen.add(key)
            yield (
                self._demonstration(question, answer, is_valid)
                if self.cfg.rows == "demonstrations"
                else (self._task(f"{self.cfg.subject}-{key[:16]}", index, question, answer if is_valid else None))
            )
            if len(seen) == self.cfg.size:
                return
        raise DataError(
            f"generator '{self.cfg.subject}' has only {len(seen)} different questions for split '{self.cfg.split}', "
            f"and size is {self.cfg.size}. Set a smaller size, or make the tasks more varied."
        )

    def verify(self, *, completion: str) -> VerificationResult:
        """Return the score of the library's scorer, which may give partial credit."""
        entry = _read_entry(self._dataset, self.cfg.index)
        score = float(self._dataset.score_answer(answer=self.cfg.answer_in(completion), entry=entry))
        return VerificationResult(score, {"score": score})

    def _entry(self, index: int) -> tuple[str, str, bool]:
        """Return question, stored answer, and whether the library's scorer accepts it (not for five generators)."""
        entry = _read_entry(self._dataset, index)
        answer = entry["answer"]
        is_valid = answer is not None and self._dataset.score_answer(answer=answer, entry=entry) >= 1.0
        return entry["question"], str(answer), is_valid

    @property
    def _dataset(self) -> Any:
        return _open_dataset(self.cfg.subject, self.cfg.seed, self.cfg.level, json.dumps(self.cfg.knobs))

    def _task(self, task_id: str, index: int, question: str, answer: str | None) -> Row:
        params = self.cfg.model_dump(
            mode="json", exclude_defaults=True, exclude={"split", "size", "prompt", "rows"}
        ) | {"index": index}
        return {
            "task_id": task_id,
            "instruction": self.cfg.prompt.replace("{question}", question),
            "verifier": {"kind": "in_process", "fn_name": self.name, "expected": answer, "params": params},
            "metadata": {"generator": self.cfg.subject, "seed": self.cfg.seed},
        }

    def _demonstration(self, question: str, answer: str, is_valid: bool) -> Row:
        if not is_valid:
            raise DataError(
                f"generator '{self.cfg.subject}' stores an answer that its own scorer rejects ({answer[:60]!r}), so "
                "its rows cannot be demonstrations. Train on its tasks with rl instead."
            )
        user_turn = {"role": "user", "content": self.cfg.prompt.replace("{question}", question)}
        return {"messages": [user_turn, {"role": "assistant", "content": answer}]}


@lru_cache(maxsize=64)
def _open_dataset(generator: str, seed: int, level: int | None, knobs: str) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a dependency of the library has invalid escape sequences
        library: Any = import_module("reasoning_gym")
        factory: Any = import_module("reasoning_gym.factory")
    if generator not in factory.DATASETS:
        names = factory.DATASETS
        hint = suggest(generator, names) or f"It has {len(names)}, for example leg_counting."
        raise DataError(f"reasoning-gym has no generator '{generator}'. {hint}")
    params: dict[str, Any] = json.loads(knobs)
    try:
        if level is not None:
            params = _params_of_level(factory, generator, level) | params
        if generator == "composite":
            spec = import_module("reasoning_gym.composite").DatasetSpec
            params["datasets"] = [spec(**({"weight": 1.0, "config": {}} | part)) for part in params.get("datasets", ())]
        return library.create_dataset(generator, **(params | {"size": _STREAM, "seed": seed * _STREAM}))
    except Exception as error:  # generators raise various exceptions for invalid params
        raise DataError(f"generator '{generator}' refuses {knobs}: {error}. Correct the params of the path.") from error


def _params_of_level(factory: Any, generator: str, level: int) -> dict[str, Any]:
    curriculum = factory.create_curriculum(generator)
    highest = max(len(attribute.levels) for attribute in curriculum.attributes.values()) - 1
    if level > highest:
        raise ValueError(f"level is {level}, and its curriculum has the levels 0 to {highest}")
    curriculum.set_global_level(level)
    return {**vars(curriculum.generate_configuration())}


@lru_cache(maxsize=4096)
def _read_entry(dataset: Any, index: int) -> Any:
    return dataset[index]
