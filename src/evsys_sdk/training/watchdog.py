"""Stops a diverging run with a diagnosis, before it spends the rest of its budget."""

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
    """Multiple of its best value that the loss may reach ..."""
    patience: int = 3
    """... for this many consecutive steps."""
    max_empty_batches: int = 5
    """Maximum number of consecutive batches without data."""

    _best: float = math.inf
    _exploded: int = 0
    _empty: int = 0
    _reason: str = ""
    """The recipe's explanation of the last empty batch."""

    def state(self) -> dict[str, float]:
        """State for `restore` on resume."""
        # JSON has no infinity, the initial best loss.
        values = {"exploded": self._exploded, "empty": self._empty}
        return values | ({"best": self._best} if math.isfinite(self._best) else {})

    def restore(self, state: Mapping[str, float]) -> None:
        """Continue from a saved state."""
        self._best = state.get("best", math.inf)
        self._exploded, self._empty = int(state.get("exploded", 0)), int(state.get("empty", 0))

    def check_step(self, step: int, metrics: Mapping[str, float]) -> None:
        """Raise TrainingError if this step shows divergence."""
        self._empty = 0
        for key in ("loss", "grad_norm"):
            value = metrics.get(key, 0.0)
            if not math.isfinite(value):
                raise TrainingError(
                    f"{key} became {value} at step {step}. The weights are unusable. Lower learning_rate (try a third) "
                    "or set grad_clip_norm, and restart from an earlier checkpoint."
                )
        self._check_explosion(step, metrics.get("loss"))

    def check_empty(self, step: int, reason: str = "") -> None:
        """Count a batch without data; raise TrainingError after too many consecutive ones."""
        self._empty, self._reason = self._empty + 1, reason
        if self._empty >= self.max_empty_batches:
            raise TrainingError(
                f"{self._empty} batches in a row up to step {step} had nothing to learn from: {reason or _REMEDY}"
            )

    def check_learned(self, steps: int, *, learned: bool) -> None:
        """Raise TrainingError for a finished run that trained on nothing."""
        if steps and not learned:
            raise TrainingError(
                f"none of the {steps} steps had anything to learn from, so nothing was trained. "
                f"{self._reason or _REMEDY}"
            )

    def _check_explosion(self, step: int, loss: float | None) -> None:
        if loss is None or loss < 0:
            return  # policy-gradient losses have no natural scale
        # Losses near zero vary by large factors.
        exploded = loss > self.exploding_factor * max(self._best, 0.05)
        self._best = min(self._best, loss)
        self._exploded = self._exploded + 1 if exploded else 0
        if self._exploded >= self.patience:
            raise TrainingError(
                f"the loss exploded: {loss:.4g} at step {step} after a best of {self._best:.4g}. Lower learning_rate, "
                "add warmup_steps or set grad_clip_norm."
            )
