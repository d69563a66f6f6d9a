"""The smallest algorithm: a class with `train`, and nothing of the SDK's loop. It trains nothing and logs a cosine."""

import math
from typing import ClassVar

from pydantic import BaseModel

from evsys_sdk import RunContext, RunResult, register_algorithm


@register_algorithm("cosine_toy")
class CosineToy:
    """Logs a cosine instead of a loss."""

    name: ClassVar[str] = "cosine_toy"

    class Config(BaseModel, extra="forbid", use_attribute_docstrings=True):
        amplitude: float = 1.0
        """Height of the curve."""
        steps: int = 100
        """How many points to log."""

    def __init__(self, **params):
        self.cfg = self.Config(**params)

    def train(self, ctx: RunContext) -> RunResult:
        value = 0.0
        for step in range(1, self.cfg.steps + 1):
            value = self.cfg.amplitude * math.cos(step / 10)
            ctx.log_store.log_scalar("loss", value, step)
        return RunResult(run_id=ctx.run_id, status="completed", metrics={"final_loss": value})
