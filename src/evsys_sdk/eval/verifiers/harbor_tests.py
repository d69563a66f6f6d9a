"""`harbor_tests`: the verifier of tasks from `load_harbor_tasks`, whose reward comes from the tests in the task folder.

The engine `harbor` runs these tests itself, after the agent and in the same environment. This verifier only raises, so
that other engines refuse such tasks.
"""

from __future__ import annotations

from typing import ClassVar, NoReturn

from ...config.base import Strict
from ...errors import EvalError
from ..verifier import BaseVerifier


class HarborTestsParams(Strict):
    """No params: the task folder defines the tests."""


class HarborTests(BaseVerifier[HarborTestsParams]):
    """The tests in a task's folder; only for engine `harbor`."""

    name: ClassVar[str] = "harbor_tests"
    Config = HarborTestsParams

    def verify(self, *, completion: str) -> NoReturn:
        """Raise EvalError, because only the engine `harbor` can run the tests."""
        raise EvalError("the tests of a task folder run only inside a Harbor trial. Set engine: harbor.")
