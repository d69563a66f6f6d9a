"""Stops a run that has gone wrong, with a diagnosis, before it spends the rest of its budget."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from ..errors import TrainingError

_REMEDY = "Check that rows have supervised tokens, or, for RL, that the rewards within a group differ."


@dataclass(slots=True)
class Watchdog:
    """Watches loss, gradients and empty batches."""

    exploding_factor: float = 20.0
    """How many times its best value the loss may reach ..."""
    patience: int = 3
    """... for this many steps in a row."""
    max_empty_batches: int = 5
    """How many batches in a row may hold nothing to learn from."""

    _best: float = math.inf
    _exploded: int = 0
    _empty: int = 0
    _reason: str = ""
    """What the recipe said of the last batch without data."""

    def state(self) -> dict[str, float]:
        """What `restore` needs to continue watching after a resume."""
        # JSON has no infinity: before the first loss there is no best one to save.
        found = {"exploded": self._exploded, "empty": self._empty}
        return found | ({"best": self._best} if math.isfinite(self._best) else {})

    def restore(self, state: Mapping[str, float]) -> None:
        """Continue from a saved state."""
        self._best = state.get("best", math.inf)
        self._exploded, self._empty = int(state.get("exploded", 0)), int(state.get("empty", 0))

    def check_step(self, step: int, metrics: Mapping[str, float]) -> None:
        """Raise TrainingError when this step shows that the run cannot recover."""
        self._empty = 0
        for key in ("loss", "grad_norm"):
            value = metrics.get(key, 0.0)
            if not math.isfinite(value):
                raise TrainingError(
                    f"{key} became {value} at step {step}. The weights can no longer be trusted; lower learning_rate "
                    "(try a third of it) or set grad_clip_norm, and start again from an earlier checkpoint."
                )
        self._check_explosion(step, metrics.get("loss"))

    def check_empty(self, step: int, reason: str = "") -> None:
        """Count a batch without data; raise after too many in a row, with what the recipe says of the last one."""
        self._empty, self._reason = self._empty + 1, reason
        if self._empty >= self.max_empty_batches:
            raise TrainingError(
                f"{self._empty} batches in a row up to step {step} held nothing to learn from. {reason or _REMEDY}"
            )

    def check_learned(self, steps: int, *, learned: bool) -> None:
        """Refuse to call a run finished that never had anything to learn from, however few its steps were."""
        if steps and not learned:
            raise TrainingError(
                f"none of the {steps} steps had anything to learn from, so that nothing was trained. "
                f"{self._reason or _REMEDY}"
            )

    def _check_explosion(self, step: int, loss: float | None) -> None:
        if loss is None or loss < 0:
            return  # policy-gradient losses have no natural scale
        # Losses near zero jump by large factors without meaning anything.
        exploded = loss > self.exploding_factor * max(self._best, 0.05)
        self._best = min(self._best, loss)
        self._exploded = self._exploded + 1 if exploded else 0
        if self._exploded >= self.patience:
            raise TrainingError(
                f"the loss exploded: {loss:.4g} at step {step} after a best of {self._best:.4g}. Lower learning_rate, "
                "add warmup_steps or set grad_clip_norm."
            )
