"""Check that a recipe accepts its rows: run its `setup` on some of them with a client that does not train.

Only recipes of the SDK are set up, because `setup` of a user's recipe may cost money. Rows are read for all recipes.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from ...algorithms.base import BaseAlgorithm
from ...algorithms.on_policy import RolloutAlgorithm
from ...backends.client import Capabilities, ForwardBackwardOutput
from ...backends.future import Operation
from ...backends.mock.tokenizer import VOCABULARY, ByteTokenizer
from ...data.rows import from_dict
from ...data.types import HarborTask, InProcessVerifier
from ...errors import ConfigError, EvsysError, Problem, problems_of
from ...eval.verifier import build_verifier
from ...eval.verifiers.python_tests import check_tests
from ...inference.renderer import Renderer, get_renderer
from ...log import get_logger
from ...protocols import Row, traits_of
from ...rollouts.engine import try_program
from ...rollouts.harbor.task_folder import refuse_containers
from ...rollouts.harness import check_environment
from ...training import examples
from ...training.blocking import run_blocking
from ...training.callback import Observers, RunControl
from ...training.services import RunServices
from .sources import PulledRows, try_rows

if TYPE_CHECKING:
    from ...backends.datum import Datum


_UNLIMITED = 1 << 40
_PROGRAM_S = 60.0
"""Seconds that an agent program has for its first requests; a slower program is not refused."""
_OWN = __name__.partition(".")[0]


@dataclass(frozen=True, slots=True)
class StillClient:
    """A stand-in for the training client in `setup`: it has a tokenizer and a context length, and does not train."""

    model_name: str
    context_length: int | None = None
    """In tokens of `tokenizer`; None if unknown, so that every row fits."""
    tokenizer: Any = field(default_factory=ByteTokenizer)
    renderer: Renderer | None = None
    """Renderer of conversations; by default the chat template of the tokenizer."""
    backend: str = "mock"

    @property
    def capabilities(self) -> Capabilities:
        """Capabilities that refuse nothing; the real backend checks its own."""
        return Capabilities(
            backend=self.backend if self.context_length is not None else "unknown",
            vocab_size=VOCABULARY if isinstance(self.tokenizer, ByteTokenizer) else len(self.tokenizer),
            context_length=self.context_length or _UNLIMITED,
            losses=frozenset(),
            suggested_learning_rate=1e-4,
            top_k_logprobs=1 << 20,
            vision=self.context_length is None,
        )

    def forward(self, data: Sequence[Datum], *_: Any) -> Operation[ForwardBackwardOutput]:
        import numpy as np

        logprobs = [np.zeros(len(datum.tokens), dtype=np.float32) for datum in data]
        return Operation[ForwardBackwardOutput].done(ForwardBackwardOutput(0.0, logprobs))

    def sampler(self, name: str | None = None) -> Operation[Any]:
        return Operation[Any].done(self)

    def open_sampler(self, ref: str) -> Operation[Any]:
        return Operation[Any].done(self)


def recipe_problems(
    algorithm: BaseAlgorithm, pulled: PulledRows, client: StillClient, *, place: str, data_place: str, folder: Path
) -> Iterator[Problem]:
    """Problems in the rows, params, verifiers and environment of a recipe."""
    if not pulled.rows or not _is_ours(algorithm, "setup"):
        return
    if client.context_length is None:
        if _has_images(pulled.rows[0]):
            return  # only the backend knows whether the model accepts images
        # A row has more bytes than tokens, so that a limit in tokens would refuse valid rows.
        if hasattr(algorithm.cfg, "max_length"):
            algorithm.cfg = algorithm.cfg.model_copy(update={"max_length": None})
    try:
        problems = try_rows(pulled, lambda rows: _set_up(algorithm, rows, client, folder), data_place)
    except ConfigError as error:  # about the params, whatever the rows
        yield from problems_of(error, f"{place}.params")
        return
    yield from problems
    if isinstance(algorithm, RolloutAlgorithm) and not problems:
        yield from verifier_problems(pulled, data_place)
        try:
            rollouts = traits_of(algorithm).rollouts
            check_environment(rollouts.environment if rollouts else None)
            harness = algorithm.harness()
            refuse_containers(algorithm.tasks, harness.environment)
        except EvsysError as refused:
            yield from problems_of(refused, f"{place}.params.environment")
            return
        if reason := try_program(harness, algorithm.tasks[0], _PROGRAM_S):
            hint = "It was started once with a stand-in for the policy. Correct the command, or what it needs."
            yield Problem(f"the program cannot be used: {reason}", f"{place}.params.agent", hint=hint)


def _has_images(row: Row) -> bool:
    return '"image' in json.dumps(row.get("messages"), default=str)


def _is_ours(algorithm: BaseAlgorithm, method: str) -> bool:
    return getattr(type(algorithm), method).__module__.partition(".")[0] == _OWN


def _set_up(algorithm: BaseAlgorithm, rows: Sequence[Row], client: StillClient, folder: Path) -> EvsysError | None:
    renderer = client.renderer or get_renderer(client.tokenizer)
    standing = cast("Any", client)
    services = RunServices(Observers([]), RunControl(), _score_nothing, _load_nothing, standing, renderer, 0)
    algorithm.bind(client=standing, renderer=renderer, rows=rows, seed=0, run_dir=folder, services=services)
    stated = get_logger(examples.__name__)
    stated.disabled = True  # the run itself reports what it leaves out
    try:
        run_blocking(algorithm.setup)
    except ConfigError:
        raise
    except EvsysError as error:
        return error
    finally:
        stated.disabled = False
        algorithm.close()
    return None


def batch_problems(algorithm: BaseAlgorithm, pulled: PulledRows, place: str) -> Iterator[Problem]:
    """Report a `batch_size` in the config that is larger than the number of rows."""
    size, rows = algorithm.cfg.batch_size, len(pulled.rows)
    if pulled.complete and rows and size > rows and "batch_size" in algorithm.cfg.model_fields_set:
        message = f"a batch of {size:,} does not fit into the {rows:,} rows there are"
        yield Problem(message, f"{place}.params.batch_size", hint=f"Set it to {rows} or less, or add rows.")


async def _score_nothing(*_: Any) -> Any:
    raise AssertionError("nothing is rolled out before a run")


def _load_nothing(_: Any) -> Any:
    raise AssertionError("rows are pulled before a recipe is set up")


def verifier_problems(pulled: PulledRows, place: str) -> Iterator[Problem]:
    """Verifiers that are not registered or refuse their params, each reported once at its first row."""
    seen: set[str] = set()
    for index, row in enumerate(pulled.rows):
        given: Any = row.get("verifier")
        key = _name_of(given)
        if key is None or key in seen:
            continue
        seen.add(key)
        try:
            _build(row)
        except EvsysError as error:
            for problem in problems_of(error, place, "Correct the name in the rows, or register the verifier."):
                yield Problem(f"{pulled.where(index)}: {problem.message}", place, hint=problem.hint)


def _name_of(verifier: Any) -> str | None:
    """A key of the verifier and its params, without the expected answer; None if there is no verifier."""
    if not isinstance(verifier, dict):
        return None
    return repr({key: value for key, value in cast("Row", verifier).items() if key != "expected"})


def _build(row: Row) -> None:
    task = from_dict({key: row[key] for key in ("task_id", "instruction", "verifier") if key in row})
    assert isinstance(task, HarborTask)
    build_verifier(task.verifier)
    if isinstance(task.verifier, InProcessVerifier) and task.verifier.fn_name == "python_tests":
        check_tests(task.verifier.expected)
