"""`harbor_tests`: the tests in a task folder of Harbor's format give the reward. `load_harbor_tasks` names it.

The engine `harbor` runs such tests itself, as Harbor does, after the agent and in the same environment. Nothing here
scores: it is what other engines find, so that such a task is refused by them and never scored by something else.
"""

from __future__ import annotations

from typing import ClassVar, NoReturn

from ...config.base import Strict
from ...errors import EvalError
from ..verifier import BaseVerifier


class HarborTestsParams(Strict):
    """There are none: the folder says everything."""


class HarborTests(BaseVerifier[HarborTestsParams]):
    """The tests in a task's folder; for engine `harbor` only."""

    name: ClassVar[str] = "harbor_tests"
    Config = HarborTestsParams

    def verify(self, *, completion: str) -> NoReturn:
        """Refuse to score."""
        raise EvalError("the tests of a task folder run only inside a Harbor trial. Set engine: harbor.")
