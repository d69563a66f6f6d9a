"""python_tests: what honest tests can do with a solution in another process, and what they are told they cannot."""

# ruff: noqa: E501  # programs are easier to read on their own lines

from __future__ import annotations

from pathlib import Path

import pytest

from evsys_sdk.errors import EvalError

from .scoring import FolderEnvironment
from .test_python_tests import judged

pytestmark = pytest.mark.slow

STACK = """
class Empty(Exception): pass
class Stack:
    size = 0
    def __init__(self, items=()): self.items = list(items)
    def push(self, item): self.items.append(item); return self
    def pop(self):
        if not self.items: raise Empty('nothing there')
        return self.items.pop()
    def __len__(self): return len(self.items)
    def __iter__(self): return iter(self.items)
    def __getitem__(self, at): return self.items[at]
    def __add__(self, other): return Stack(self.items + other.items)
    def __eq__(self, other): return self.items == other.items
    def __hash__(self): return 1
    def __enter__(self): return self
    def __exit__(self, *error): self.items.clear()
def make(): return Stack([1])
"""
CASES = {
    "methods and length": (
        STACK,
        "s = Stack([1, 2])\nassert s.pop() == 2\ns.push(3)\nassert len(s) == 2 and list(s) == [1, 3]",
    ),
    "items and attributes": (
        STACK,
        "s = Stack([1, 2])\nassert s[0] == 1\ns.size = 4\nassert s.size == 4\nassert s.items == [1, 2]",
    ),
    "operators between objects": (STACK, "assert (Stack([1]) + Stack([2])).items == [1, 2]"),
    "equality between objects": (STACK, "assert Stack([1]) == make()\nassert Stack([1]) != Stack([2])"),
    "own exceptions": (
        STACK,
        "import unittest\nclass T(unittest.TestCase):\n    def test_it(self):\n"
        "        with self.assertRaises(Empty) as caught: Stack().pop()\n"
        "        self.assertEqual(str(caught.exception), 'nothing there')",
    ),
    "builtin exceptions": (
        "def f(x): return int(x)",
        "try:\n    f('a')\nexcept ValueError as error:\n    assert 'invalid' in str(error)\nelse:\n    raise AssertionError",
    ),
    "isinstance": (STACK, "assert isinstance(make(), Stack) and not isinstance(3, Stack)"),
    "with": (STACK, "s = make()\nwith s as t:\n    assert len(t) == 1\nassert len(s) == 0"),
    "arguments changed in place": (
        "def f(x, seen):\n    x.sort(); seen['n'] = len(x)",
        "x, seen = [3, 1, 2], {}\nf(x, seen)\nassert x == [1, 2, 3] and seen == {'n': 3}",
    ),
    "nested arguments changed in place": (
        "def f(grid): grid[0][1] = 9",
        "row = [1, 2]\ngrid = [row]\nf(grid)\nassert row == [1, 9]",
    ),
    "keyword arguments": (
        "def f(a, *b, c=0, **d): return [a, b, c, d]",
        "assert f(1, 2, c=3, e=4) == [1, (2,), 3, {'e': 4}]",
    ),
    "generators": ("def f(n):\n    for i in range(n): yield i", "g = f(3)\nassert next(g) == 0 and list(g) == [1, 2]"),
    "callbacks": (
        "def f(g, x): return [g(one) for one in x]",
        "assert f(lambda x: x + 1, [1, 2]) == [2, 3]\nassert f(str, [1]) == ['1']",
    ),
    "callbacks that raise": (
        "def f(g):\n    try: g()\n    except KeyError: return 'caught'",
        "def fail(): raise KeyError('x')\nassert f(fail) == 'caught'",
    ),
    "functions that return functions": ("def f(n): return lambda x: x + n", "assert f(2)(3) == 5"),
    "async functions": ("async def f(x): return x + 1", "import asyncio\nassert asyncio.run(f(1)) == 2"),
    "printed text": (
        "def f(): print('hello')",
        "import io, contextlib\nwith contextlib.redirect_stdout(io.StringIO()) as out: f()\nassert out.getvalue() == 'hello\\n'",
    ),
    "every plain type": (
        "def f(*x): return x",
        "import datetime, decimal, fractions\nx = (None, True, 2**80, -1, 1.5, float('inf'), 1j, 'a\\ud800', b'b', [1], (2,), {1: {2}}, frozenset([3]), range(4),\n"
        "     decimal.Decimal('1.1'), fractions.Fraction(1, 3), datetime.datetime(2024, 1, 2), datetime.timedelta(1))\n"
        "assert f(*x) == x\nassert [type(one) for one in f(*x)] == [type(one) for one in x]",
    ),
    "subclasses of plain types": (
        "import collections\nP = collections.namedtuple('P', 'x y')\ndef f(): return [collections.Counter('aa'), P(1, 2), collections.OrderedDict(a=1)]",
        "counter, point, ordered = f()\nassert counter == {'a': 2} and point.x == 1 and point == (1, 2) and ordered == {'a': 1}",
    ),
    "importing the solution": (
        "def add(a, b): return a + b\nLIMIT = 3",
        "from solution import add, LIMIT\nimport solution\nassert add(1, LIMIT) == solution.add(2, 2)",
    ),
    "importing everything": (
        "def sum(x): return 41",
        "from solution import *\nimport solution\nassert solution.sum([]) == 41",
    ),
    "its imports": (
        "import math\nimport os.path\ndef f(): return math.pi",
        "assert math.isclose(f(), 3.14159, rel_tol=1e-3)",
    ),
    "enums": (
        "import enum\nclass C(enum.Enum):\n    A = 1\n    B = 2\ndef f(): return C.A",
        "assert f() == C.A and f() is not None and f() != C.B\nassert f().value == 1",
    ),
    "dataclasses": (
        "import dataclasses\n@dataclasses.dataclass\nclass D:\n    x: int\ndef f(): return D(3)",
        "assert f().x == 3 and f() == D(3)",
    ),
    "a checker function": ("def f(x): return x * 2", "def check(candidate):\n    assert candidate(2) == 4\ncheck(f)"),
    "views and deques": (
        "import collections\nd = {1: 'a', 2: 'b'}\ndef f(): return d.keys(), d.values(), d.items(), collections.deque([1])",
        "keys, values, items, deque = f()\nassert keys == {1, 2} and 1 in keys and 'a' in values and (2, 'b') in items\nimport collections\nassert deque == collections.deque([1])",
    ),
    "objects that hold objects": (
        STACK,
        "s = Stack([1])\ns.inner = Stack([2])\nassert s.inner.pop() == 2\nassert s.push(3).pop() == 3",
    ),
    "linked nodes": (
        "class Node:\n    def __init__(self, v, n=None): self.v, self.next = v, n\ndef f(): return Node(1, Node(2))",
        "assert f().next.v == 2 and f().next.next is None",
    ),
}


@pytest.fixture
def place(tmp_path: Path) -> FolderEnvironment:
    return FolderEnvironment(tmp_path)


@pytest.mark.parametrize("case", CASES)
async def test_a_right_solution_passes(place: FolderEnvironment, case: str) -> None:
    code, test = CASES[case]
    decision = await judged(place, f"```python\n{code}\n```", [test])
    assert decision.reward == 1.0, decision.info


@pytest.mark.parametrize(
    ("test", "reason"),
    [
        ("assert (", r"the test is not Python: '\(' was never closed"),
        ("def test_it(tmp_path): pass", r"line 1: test_it has parameters, and there are no fixtures here"),
        ("async def test_it(): pass", r"test_it is async and would never run\. Call asyncio\.run inside it"),
        ("from unittest.mock import patch", r"unittest\.mock reaches into the solution's process"),
        ("import inspect\nassert inspect.getsource(f)", r"line 1: inspect reaches into the solution's process"),
    ],
)
async def test_a_test_that_cannot_be_judged_is_an_error_of_the_task(
    place: FolderEnvironment, test: str, reason: str
) -> None:
    with pytest.raises(EvalError, match=reason):
        await judged(place, "```python\nx = 1\n```", [test])
    assert place.commands == []


async def test_what_cannot_be_handed_over_is_reported(place: FolderEnvironment) -> None:
    decision = await judged(place, "```python\ndef f(x): return 1\n```", ["class Own: pass\nassert f(Own()) == 1"])
    assert (decision.reward, decision.info["failures"]["0"]) == (
        0.0,
        "NotPlain: a test cannot hand a Own to the solution, only plain data",
    )
