"""A search end to end on the mock backend: what is trained and what is recorded."""

from __future__ import annotations

from collections.abc import Callable

from evsys_sdk.experiment import ExperimentResult
from evsys_sdk.record.events import Kind, read_events

type Run = Callable[..., ExperimentResult]


def test_runs_that_were_drawn_are_trained_and_noted_once(run: Run) -> None:
    runs = [{"name": name} for name in "abcd"]
    search = {"kind": "random", "n": 2, "seed": 3}
    result = run(runs=runs, search=search)
    assert result.exit_code == 0
    assert len(result.arms) == 2
    assert run(runs=runs, search=search, resume=True).path == result.path
    [note] = [event.payload for event in read_events(result.path) if event.kind == Kind.SEARCH_DECISION]
    assert note["sampled"] == [arm.name for arm in result.arms]
    assert note["why"] == "2 runs were drawn with seed 3"
