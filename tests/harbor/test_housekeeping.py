"""Trials leave nothing behind: no files, no loggers, no running environments."""

import asyncio
import logging
import threading
from pathlib import Path
from typing import Any

import pytest

from evsys_sdk.rollouts.environment import NoEnvironment
from evsys_sdk.rollouts.harbor import engine as engine_module

pytest.importorskip("harbor", reason="needs the extra harbor; run make test-harbor")
pytestmark = pytest.mark.harbor


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(engine_module, "_fast_folder", lambda: tmp_path)
    return tmp_path


def test_files_go_with_the_trial_and_the_rest_with_the_engine(root: Path, make_engine: Any, make_request: Any) -> None:
    engine = make_engine()
    engine.submit([make_request() for _ in range(5)]).result()
    [folder] = root.iterdir()
    assert not list((folder / "trials").iterdir())
    assert len(list((folder / "tasks").iterdir())) == 1
    engine.close()
    assert not list(root.iterdir())


def test_an_engine_works_again_after_it_was_closed(root: Path, make_engine: Any, make_request: Any) -> None:
    engine = make_engine()
    for _ in range(2):
        assert engine.submit([make_request()]).result()[0].reward == 1.0
        engine.close()
    assert not list(root.iterdir())


def test_loggers_do_not_pile_up(make_engine: Any, make_request: Any) -> None:
    engine = make_engine(concurrency=2)
    engine.submit([make_request() for _ in range(4)]).result()
    before = len(logging.Logger.manager.loggerDict)
    engine.submit([make_request() for _ in range(10)]).result()
    assert len(logging.Logger.manager.loggerDict) == before


def test_no_more_run_at_once_than_allowed(make_engine: Any, make_request: Any) -> None:
    running: list[int] = [0, 0]

    async def count(task: Any, policy: Any, environment: Any) -> Any:
        running[0] += 1
        running[1] = max(running)
        await asyncio.sleep(0.01)
        running[0] -= 1
        turn = await policy.act([{"role": "user", "content": task.instruction}])
        return [turn.message]

    rollouts = make_engine(concurrency=3).submit([make_request(run=count) for _ in range(12)]).result()
    assert {rollout.status for rollout in rollouts} == {"ok"}
    assert running[1] == 3


def test_closing_stops_what_is_running(root: Path, make_engine: Any, make_request: Any) -> None:
    started, stopped = threading.Event(), []

    class Watched(NoEnvironment):
        async def stop(self) -> None:
            stopped.append(1)

    async def hang(task: Any, policy: Any, environment: Any) -> Any:
        started.set()
        await asyncio.sleep(60)

    engine = make_engine()
    operation = engine.submit([make_request(run=hang, environment=Watched)])
    assert started.wait(60)
    engine.close()
    with pytest.raises(BaseException):  # noqa: B017, PT011  # however the operation says that it was cancelled
        operation.result()
    assert stopped
    assert not list(root.iterdir())
