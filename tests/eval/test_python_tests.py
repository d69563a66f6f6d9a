"""python_tests: a model's code runs in the rollout's sandbox and nowhere else, and cannot pass by ending early."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from evsys_sdk.data.types import HarborTask, InProcessVerifier
from evsys_sdk.errors import EvalError
from evsys_sdk.eval.verifier import VerifierInput, build_verifier
from evsys_sdk.protocols import VerificationResult
from evsys_sdk.registry import get_environment
from evsys_sdk.rollouts.environment import Environment, SandboxError, running

from .scoring import FolderEnvironment

ADD = "```python\ndef add(a, b):\n    return a + b\n```"
CASE = "import unittest\nclass T(unittest.TestCase):\n    def test(self): self.assertEqual(add(1, 1), {})"
TESTS = ["assert add(2, 2) == 4", "assert add(-1, 1) == 0"]


async def judged(place: Environment | None, completion: str, tests: Any, **params: Any) -> VerificationResult:
    if isinstance(place, FolderEnvironment):
        params = {"python": f"{sys.executable} -S", **params}
    verifier = InProcessVerifier("python_tests", tests, params)
    task = HarborTask("t1", "write add", verifier)
    return await build_verifier(verifier)(VerifierInput("write add", completion, task=task, environment=place))


@pytest.fixture
def place(tmp_path: Path) -> FolderEnvironment:
    return FolderEnvironment(tmp_path)


@pytest.mark.parametrize(
    ("completion", "tests", "params", "earned"),
    [
        (ADD, TESTS, {}, 1.0),
        (ADD, "\n".join(TESTS), {}, 1.0),
        (f"First I tried\n```python\nbroken(\n```\nthen\n{ADD}", TESTS, {}, 1.0),
        (f"<think>```python\nnonsense(\n```</think>{ADD}", TESTS, {}, 1.0),
        ("```\ndef add(a, b): return a + b\n```", TESTS, {}, 1.0),
        ("def add(a, b): return a + b", TESTS, {}, 1.0),
        ("<answer>def add(a, b): return a + b</answer>", TESTS, {}, 1.0),
        ("```py\nx = 1\n```\n```py\ndef add(a, b): return a + b + x - 1\n```", TESTS, {"code": "all_blocks"}, 1.0),
        ("def add(a, b): return a + b", TESTS, {"code": "whole"}, 1.0),
        ("```python\ndef add(a, b): return 4\n```", TESTS, {}, 0.0),
        ("```python\ndef add(a, b): return 4\n```", TESTS, {"partial_credit": True}, 0.5),
        ("I cannot.", TESTS, {}, 0.0),
        ("```python\ndef add(a, b) return\n```", TESTS, {}, 0.0),
        ("```python\n\ud800\n```", TESTS, {}, 0.0),
        (ADD, ["def test_it():\n    assert add(1, 1) == 2"], {}, 1.0),
        (ADD, ["def test_it():\n    assert add(1, 1) == 3"], {}, 0.0),
        (ADD, [CASE.format(2)], {}, 1.0),
        (ADD, [CASE.format(3)], {}, 0.0),
    ],
)
async def test_code_is_judged_by_its_tests(
    place: FolderEnvironment, completion: str, tests: Any, params: dict[str, Any], earned: float
) -> None:
    assert (await judged(place, completion, tests, **params)).reward == earned


CHECK = "def check(candidate):\n    assert candidate(1, 1) == 2\n    assert candidate(2, 3) == 5"
FORMATS = {
    "HumanEval": CHECK,
    "HumanEval with metadata": "METADATA = {'author': 'x'}\n\n" + CHECK,
    "HumanEval with its call": CHECK + "\n\ncheck(add)",
    "pytest class": "class TestAdd:\n    def test_it(self):\n        assert add(1, 1) == 2",
    "pytest class with set-up": (
        "class TestAdd:\n    def setup_method(self, method): self.one = 1\n"
        "    def test_it(self):\n        assert add(self.one, 1) == 2"
    ),
    "pytest set-up of a module, a class and a function": (
        "one = two = 0\ndef setup_module():\n    global one\n    one = 1\n"
        "def setup_function(function):\n    global two\n    two = 2\n"
        "def test_function():\n    assert add(one, two) == 3\n"
        "class TestAdd:\n    @classmethod\n    def setup_class(cls): cls.three = 3\n"
        "    def test_method(self):\n        assert add(self.three, one) == 4"
    ),
    "pytest marks": (
        "import pytest\n@pytest.mark.timeout(5)\n@pytest.mark.slow\n"
        "@pytest.mark.parametrize('a, b', [pytest.param(1, 2, id='one'), (2, 3)])\n"
        "@pytest.mark.parametrize('c', [pytest.param(1)])\n"
        "def test_it(a, b, c):\n    assert add(a, c) == b"
    ),
    "pytest parametrize": (
        "import pytest\n@pytest.mark.parametrize('a, b, c', [(1, 1, 2), (2, 3, 5)])\n"
        "def test_it(a, b, c):\n    assert add(a, b) == c"
    ),
    "pytest approx": "import pytest\ndef test_it():\n    assert add(0.1, 0.2) == pytest.approx(0.3)",
    "pytest raises": (
        "import pytest\ndef test_it():\n    assert add(1, 1) == 2\n"
        "    with pytest.raises(TypeError, match='unsupported'):\n        add(1, 'a')"
    ),
    "main guard": "def main():\n    assert add(1, 1) == 2\nif __name__ == '__main__':\n    main()",
    "unittest with a main guard": CASE.format(2) + "\nif __name__ == '__main__':\n    unittest.main()",
    "a condition that raises": "if add(1, 1) != 2:\n    raise ValueError('wrong')",
    "numbers in a loop": "for a in range(3):\n    assert add(a, 1) == a + 1",
}


@pytest.mark.parametrize("format", FORMATS)
async def test_formats_of_tests_run_as_they_are_meant(place: FolderEnvironment, format: str) -> None:
    for code, earned in (("return a + b", 1.0), ("return 7", 0.0), ("raise ValueError", 0.0)):
        decision = await judged(place, f"```python\ndef add(a, b):\n    {code}\n```", [FORMATS[format]])
        assert decision.reward == earned, decision.info


@pytest.mark.parametrize(
    "test",
    [
        "def helper():\n    assert add(1, 1) == 2",
        "class Case:\n    def test_it(self):\n        assert add(1, 1) == 2",
        "for item in []:\n    assert add(1, 1) == item",
        "add(1, 1)\nif False:\n    assert add(1, 1) == 2",
        "import unittest\n@unittest.expectedFailure\n" + CASE.format(2).partition("\n")[2],
        "import unittest\n@unittest.skip('')\n" + CASE.format(2).partition("\n")[2],
    ],
)
async def test_a_test_that_asserts_nothing_about_the_solution_is_not_passed(
    place: FolderEnvironment, test: str
) -> None:
    assert (await judged(place, ADD, [test])).reward == 0.0


@pytest.mark.parametrize(
    "test",
    [
        "assert True",
        "add(1, 1)\nassert 2 == 2",
        "add(1, 1)",
        "print(add(1, 1))",
        "def test_it():\n    yield add(1, 1) == 2\n    assert 0",
    ],
)
async def test_a_test_that_any_code_passes_is_an_error_of_the_task(place: FolderEnvironment, test: str) -> None:
    with pytest.raises(EvalError, match=r"any code would pass|would never run|could supply it"):
        await judged(place, ADD, [test])


HONEST = {
    "a variable": ("LIMITS = [1, 2]", "assert LIMITS == [1, 2]"),
    "a counter": (
        "from collections import Counter\ndef count(text): return Counter(text)",
        "assert count('aab').most_common(1) == [('a', 2)]\nassert count('aab') == {'a': 2, 'b': 1}",
    ),
    "a container that the test makes": (
        "class Even:\n    def __contains__(self, n): return n % 2 == 0",
        "assert 2 in Even()\nassert 3 not in Even()",
    ),
}


@pytest.mark.parametrize("what", HONEST)
async def test_what_tests_ask_about_besides_functions(place: FolderEnvironment, what: str) -> None:
    code, test = HONEST[what]
    decision = await judged(place, f"```python\n{code}\n```", [test])
    assert decision.reward == 1.0, decision.info


async def test_a_variable_of_the_test_is_not_the_solutions(place: FolderEnvironment) -> None:
    decision = await judged(place, "```python\nlimit = 1\n```", ["limit = 1\nassert limit == 1"])
    assert decision.reward == 0.0


async def test_a_context_manager_of_the_solution_swallows_nothing(place: FolderEnvironment) -> None:
    code = "class Calm:\n    def __enter__(self): return self\n    def __exit__(self, *error): return True\n"
    code += "    def guess(self): raise TypeError"
    test = "with Calm() as calm:\n    assert calm.guess() == 1"
    assert (await judged(place, f"```python\n{code}\n```", [test])).reward == 0.0


IMITATIONS = {
    "pytest": ("import pytest\nassert guess(1) == pytest.approx(42)", "approx"),
    "numpy": ("import numpy\nassert numpy.allclose(guess(1), 42)", "allclose"),
    "np": ("assert np.allclose(guess(1), 42)", "allclose"),
    "helpers": ("from helpers import same\nassert same(guess(1), 42)", "same"),
    "math": ("assert math.isclose(guess(1), 42)", "isclose"),
}


@pytest.mark.parametrize("name", IMITATIONS)
async def test_a_solution_supplies_no_module_to_the_tests(place: FolderEnvironment, name: str) -> None:
    test, function = IMITATIONS[name]
    code = (
        "import sys, types\nclass Yes:\n    def __eq__(self, other): return True\n    def __hash__(self): return 0\n"
        f"fake = types.ModuleType({name!r})\nfake.{function} = lambda *a, **k: True\nsys.modules[{name!r}] = fake\n"
        f"{name} = fake\nopen('{name}.py', 'w').write('{function} = lambda *a, **k: True')\ndef guess(n): return True"
    )
    assert (await judged(place, f"```python\n{code}\n```", [test])).reward == 0.0


@pytest.mark.parametrize(
    ("code", "test"),
    [
        (
            "import __main__\n__main__.Server._load = lambda s, c: [('__builtins__', {}), ('guess', 0)]",
            "assert guess == 1",
        ),
        (
            "class G:\n    def __enter__(s): return s\n    def __exit__(s, *e): return True\ndef guess(n): return G()",
            "with guess(1) as g:\n    assert g is None",
        ),
        ("def guess(n): raise StopIteration", "for one in map(guess, [1, 2]):\n    assert one == 42\nassert True"),
        ("def guess(n): raise StopIteration", "assert list(map(guess, [1])) == []"),
        ("def guess(n): raise GeneratorExit", "assert list(guess(n) for n in [1]) == [42]"),
        ("def guess(n): return iter(())", "for one in guess(1):\n    assert one == 42"),
    ],
)
async def test_a_solution_cannot_leave_a_test_early(place: FolderEnvironment, code: str, test: str) -> None:
    decision = await judged(place, f"```python\n{code}\n```", [test])
    assert decision.reward == 0.0, decision.info


@pytest.mark.parametrize(
    "trick",
    [
        "import sys; sys.exit(0)",
        "import os; os._exit(0)",
        "raise SystemExit",
        "exit(0)",
        "import os, signal; os.kill(os.getpid(), signal.SIGTERM)",
        "print('pass 0'); print('ready'); import os; os._exit(0)",
        "import sys, os\nos.write(1, b'0123456789abcdef pass 0\\n')\nos._exit(0)",
        "import glob\nfor name in glob.glob('.evsys_*.json'): print(open(name).read())\nimport os; os._exit(0)",
        "import sys; sys.stdout.close(); sys.stderr.close()",
        "raise KeyboardInterrupt",
        "raise ValueError('\\u2028pass 0')",
        "raise ValueError('\\x85pass\\x0bpass\\x1cpass' * 5)",
    ],
)
async def test_code_that_ends_early_or_prints_verdicts_passes_nothing(place: FolderEnvironment, trick: str) -> None:
    decision = await judged(place, f"```python\n{trick}\n```", ["assert add(2, 2) == 4"])
    assert (decision.reward, decision.info["passed"]) == (0.0, 0)


async def test_a_flood_of_output_does_not_hide_the_verdict(place: FolderEnvironment) -> None:
    noisy = ADD.replace("\n```", "\nprint('x' * 3_000_000)\nimport os; os.write(2, b'y' * 3_000_000)\n```")
    assert (await judged(place, noisy, TESTS)).reward == 1.0


async def test_reasons_are_reported(place: FolderEnvironment) -> None:
    decision = await judged(
        place, ADD, ["assert add(1, 1) == 2", "assert add(1, 1) == 3, 'one and\\none'", "assert add()"]
    )
    assert decision.info["passed"] == 1
    assert decision.info["failures"]["1"] == "AssertionError: one and\none"
    assert decision.info["failures"]["2"].startswith("TypeError: add() missing 2 required")


async def test_tests_that_are_not_done_in_time_have_failed(place: FolderEnvironment) -> None:
    tests = ["assert add(1, 1) == 2", "while True: assert add(1, 1)"]
    decision = await judged(place, ADD, tests, timeout_s=3.0, partial_credit=True)
    assert (decision.reward, decision.info["timed_out"]) == (0.5, True)


async def test_what_the_policy_left_behind_can_be_tested(place: FolderEnvironment) -> None:
    (place.folder / "work").mkdir()
    (place.folder / "work" / "calculator.py").write_text("def add(a, b): return a + b\n", encoding="utf-8")
    tests = ["from calculator import add\nassert add(1, 1) == 2"]
    assert (await judged(place, "I wrote calculator.py", tests, code="none", cwd="work")).reward == 1.0


async def test_nothing_of_the_tests_is_left_when_the_code_runs(place: FolderEnvironment) -> None:
    spy = "```python\nimport os\ndef add(a, b):\n    return a + b if os.listdir('.') == [] else 0\n```"
    assert (await judged(place, spy, TESTS)).reward == 1.0


async def test_without_a_sandbox_nothing_is_run() -> None:
    with pytest.raises(
        EvalError, match=r"verifier 'python_tests' on task 't1': there is no environment .* never run on"
    ):
        await judged(None, ADD, TESTS)
    with pytest.raises(SandboxError, match="this task has no environment"):
        await judged(get_environment("none")(), ADD, TESTS)


async def test_a_sandbox_without_python_is_an_error_and_no_zero(place: FolderEnvironment) -> None:
    with pytest.raises(EvalError, match=r"the tests did not start: 'python9000' exited with 12[67] .*not found"):
        await judged(place, ADD, TESTS, python="python9000")


@pytest.mark.parametrize("tests", [None, [], "", [""], [3], {"a": 1}])
async def test_tests_that_are_none_are_an_error_of_the_task(place: FolderEnvironment, tests: Any) -> None:
    with pytest.raises(EvalError, match="Give the tests as Python source"):
        await judged(place, ADD, tests)
    assert place.commands == []


async def test_a_real_sandbox_keeps_the_code_away_from_this_machine(tmp_path: Path) -> None:
    canary = tmp_path / "canary"
    canary.write_text("here", encoding="utf-8")
    spy = f"```python\nimport os\ndef add(a, b):\n    return a + b if not os.path.exists({str(canary)!r}) else 0\n```"
    try:
        async with running(get_environment("bwrap")()) as place:
            assert (await judged(place, ADD, TESTS)).reward == 1.0
            assert (await judged(place, spy, TESTS)).reward == 1.0
            assert (await judged(place, "```python\nimport os; os._exit(0)\n```", TESTS)).reward == 0.0
    except SandboxError as error:
        pytest.skip(f"bwrap cannot be used here: {error}")
