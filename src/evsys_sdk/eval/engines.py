"""Which rollout engine a benchmark's `engine` stands for."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from ..errors import ConfigError, Problem, closest

if TYPE_CHECKING:
    from ..rollouts.engine import EngineLimits, RolloutEngine

ENGINES = {"inline": "rollouts.engine:InlineEngine", "harbor": "rollouts.harbor.engine:HarborEngine"}
"""Name -> where the class lives, below `evsys_sdk`; it is made from `EngineLimits`."""


def check_engine(name: str, *, path: str = "engine") -> None:
    """Refuse an engine that does not exist, before anything is spent."""
    if name not in ENGINES:
        guess = closest(name, ENGINES)
        known = ", ".join(ENGINES)
        hint = f"Did you mean '{guess}'?" if guess else f"This version has: {known}."
        raise ConfigError(Problem(f"there is no rollout engine '{name}'", path=path, hint=hint))
    if name == "harbor":
        from ..rollouts.harbor.package import require_harbor

        require_harbor()


def open_engine(name: str, limits: EngineLimits) -> RolloutEngine:
    """A running engine; the caller closes it."""
    check_engine(name)
    module, _, attribute = ENGINES[name].partition(":")
    return getattr(import_module(f"evsys_sdk.{module}"), attribute)(limits)
