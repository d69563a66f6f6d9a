"""Whether every callback observes something: a class needs no base class, but it must have a hook, rightly spelt."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ...config import ExperimentConfig
from ...errors import EvsysError, Problem, closest
from ...registry import get_callback
from ...training.callback import HOOKS, Callback


def callback_problems(config: ExperimentConfig) -> Iterator[Problem]:
    """Callbacks that would not hear what they are meant to hear."""
    for index, spec in enumerate(config.callbacks):
        try:
            found: Any = get_callback(spec.kind)
        except EvsysError:  # said with the kinds of the config
            continue
        place = f"callbacks[{index}].kind"
        moments = [name for name in dir(found) if name.startswith("on_") and callable(getattr(found, name))]
        for name in moments:
            if name not in HOOKS:
                guess = closest(name, HOOKS)
                hint = f"Did you mean '{guess}'?" if guess else f"The moments are {', '.join(HOOKS)}."
                yield Problem(f"'{name}' of the callback is no moment of a run", place, spec.kind, hint)
        if isinstance(found, type) and not issubclass(found, Callback) and not moments:
            hint = f"Give it one of {', '.join(HOOKS)}."
            yield Problem("this callback observes nothing", place, spec.kind, hint)
