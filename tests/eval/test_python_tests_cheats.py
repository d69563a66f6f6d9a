"""python_tests from the cheat's side: code that wants reward 1 for a function it cannot write earns 0.

Every cheat knows how the runner works. The function that it should write is secret: what the tests expect cannot be
computed, so a reward of 1 means that the cheat has reached the tests, their comparisons or the report.
"""

# ruff: noqa: E501  # programs are easier to read on their own lines

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator
from typing import Any

import pytest

from evsys_sdk.data.types import HarborTask, InProcessVerifier
from evsys_sdk.eval.verifier import VerifierInput, build_verifier
from evsys_sdk.protocols import VerificationResult
from evsys_sdk.rollouts.environments.bwrap import BwrapEnvironment

from ..rollouts.environments.conftest import bwrap_problem, needs_bwrap

__all__ = ["bwrap_problem", "needs_bwrap"]

pytestmark = pytest.mark.slow

SECRET = secrets.randbelow(10**12)
TESTS = [f"assert guess(1) == {SECRET}", f"def test_guess():\n    assert guess(2) in ({SECRET}, 'x{SECRET}')"]

OBJECT = """
class Anything:
    def __eq__(self, other): return True
    def __ne__(self, other): return False
    __lt__ = __le__ = __gt__ = __ge__ = __contains__ = __eq__
    def __hash__(self): return 0
    def __bool__(self): return True
    def __getattr__(self, name): return lambda *a, **k: True
    def __sub__(self, other): return 0
    __rsub__ = __truediv__ = __rtruediv__ = __mod__ = __sub__
    def __abs__(self): return 0
    def __instancecheck__(self, other): return True
    def __iter__(self): return iter([self])
    def __len__(self): return 1
"""
PARENT = """
import os, re
ppid = os.getppid()
"""
FRAMES = """
import sys
def frames():
    found = sys._getframe()
    while found:
        yield found
        found = found.f_back
"""

CHEATS = {
    "an object that equals everything": OBJECT + "def guess(n): return Anything()",
    "an integer that equals everything": (
        "class Int(int):\n    def __eq__(s, o): return True\n    def __hash__(s): return 0\ndef guess(n): return Int(3)"
    ),
    "a string that equals everything": (
        "class Str(str):\n    def __eq__(s, o): return True\n    def __hash__(s): return 0\ndef guess(n): return Str('a')"
    ),
    "a float that is nothing": "def guess(n): return float('nan')",
    "a class instead of a function": OBJECT + "class guess(Anything):\n    def __init__(self, n): pass",
    "a class of classes": (
        "class Meta(type):\n    def __eq__(s, o): return True\n    def __hash__(s): return 0\n"
        "class K(metaclass=Meta): pass\ndef guess(n): return K"
    ),
    "a numpy impostor": (
        OBJECT + "Anything.__module__ = 'numpy'\nAnything.tolist = lambda self: self\ndef guess(n): return Anything()"
    ),
    "patch the runner": "import __main__; __main__.run_test = lambda *a: None; __main__.failure = lambda *a: ''",
    "patch exec and compile": "import builtins; builtins.exec = builtins.compile = lambda *a: None\ndef guess(n): return 0",
    "patch assertion errors": "import builtins; builtins.AssertionError = type('A', (BaseException,), {})\ndef guess(n): return 0",
    "patch the encoder to send a test's own value": (
        "import __main__\n__main__.encode = lambda *a, **k: {'object': [0, 'exception', 'X', 'int']}\ndef guess(n): return 0"
    ),
    "send two answers": (
        "import __main__, sys\nreal = __main__.send\n"
        "def send(d, m):\n    real(d, m); real(d, {'value': True, 'changed': {}, 'printed': ''})\n"
        "__main__.send = send\ndef guess(n): return 0"
    ),
    "answer with an unknown tag": "import __main__\n__main__.encode = lambda *a, **k: {'builtin': 'exec'}\ndef guess(n): return 0",
    "answer with a nested bomb": (
        "import __main__, os\ndef guess(n):\n    body = b'[' * 10**6\n"
        "    os.write(4, len(body).to_bytes(4, 'big') + body); return 0"
    ),
    "answer with an endless frame": (
        "import os\ndef guess(n):\n    [os.write(d, b'\\xff' * 8) for d in range(3, 9) if _ok(d)]\n"
        "def _ok(d):\n    try: os.fstat(d); return True\n    except OSError: return False"
    ),
    "tell the tests to change an expected value": (
        "import __main__\nreal = __main__.send\n"
        "def send(d, m):\n    m['changed'] = {str(i): [] for i in range(-5, 9)}; real(d, m)\n"
        "__main__.send = send\ndef guess(n): return 0"
    ),
    "call back what was never handed over": (
        "import __main__\ndef guess(n):\n    m = __main__\n    s = m.Server(3, 4)\n    s._call_back(0, (), {}); return 0"
    ),
    "raise an exception called like a skip": "class SkipTest(Exception): pass\ndef guess(n): raise SkipTest('skipped')",
    "raise text that splits the report": 'def guess(n): raise ValueError(\'\\u2028pass 0\\x85pass 1\\npass 2\\r\\x1e{"test": 1, "failure": ""}\')',
    "raise text that looks like an entry": 'def guess(n): raise ValueError(\'\\n27:{"test": 1, "failure": ""}\\n\' * 9)',
    "raise a keyboard interrupt": "def guess(n): raise KeyboardInterrupt",
    "raise a system exit of 0": "def guess(n): raise SystemExit(0)",
    "raise StopIteration": "def guess(n): raise StopIteration(True)",
    "end the process quietly": "import os; os._exit(0)",
    "end the process in the call": "import os\ndef guess(n): os._exit(0)",
    "print verdicts": "import sys\nfor i in range(2): print('pass', i)\nsys.stdout.flush()\ndef guess(n): print('pass 0'); return 0",
    "write verdicts to every descriptor": (
        "import os\nfor d in range(64):\n    try: os.write(d, b'pass 0 \\npass 1 \\n')\n    except OSError: pass\n"
        "def guess(n): return 0"
    ),
    "write verdicts to the parent's descriptors": PARENT
    + (
        "for d in range(64):\n    try: open(f'/proc/{ppid}/fd/{d}', 'w').write('pass 0 \\npass 1 \\n')\n"
        "    except OSError: pass\ndef guess(n): return 0"
    ),
    "read the tests in the parent's memory": PARENT
    + (
        "def guess(n):\n    for line in open(f'/proc/{ppid}/maps'):\n        a, b = [int(x, 16) for x in line.split()[0].split('-')]\n"
        "        m = open(f'/proc/{ppid}/mem', 'rb'); m.seek(a)\n"
        "        if f := re.search(rb'== (\\d{6,})', m.read(b - a)): return int(f[1])"
    ),
    "trace the parent": PARENT
    + (
        "import ctypes\nlibc = ctypes.CDLL(None)\nlibc.ptrace(16, ppid, 0, 0); libc.ptrace(4, ppid, 0, 0)\n"
        "def guess(n): return 0"
    ),
    "read the parent's memory by its number": PARENT
    + (
        "import ctypes\nlibc = ctypes.CDLL(None, use_errno=True)\nbuffer = ctypes.create_string_buffer(1 << 20)\n"
        "def guess(n):\n    for at in range(0x7f0000000000, 0x7f0000400000, 1 << 12):\n"
        "        v = (ctypes.c_void_p * 2)(ctypes.addressof(buffer), 4096); r = (ctypes.c_void_p * 2)(at, 4096)\n"
        "        libc.process_vm_readv(ppid, v, 1, r, 1, 0)\n"
        "    f = re.search(rb'== (\\d{6,})', buffer.raw); return int(f[1]) if f else 0"
    ),
    "read the tests on somebody's command line": PARENT
    + (
        "import glob\ndef guess(n):\n    for name in glob.glob('/proc/[0-9]*/cmdline') + glob.glob('/proc/[0-9]*/environ'):\n"
        "        try: text = open(name).read()\n        except OSError: continue\n"
        "        if f := re.search(r'== (\\d{6,})', text): return int(f[1])"
    ),
    "look for the job on disk": (
        "import os, re\ndef guess(n):\n    for top in ('/tmp', '/app', '/tests', '/dev/shm', '/logs'):\n"
        "        for folder, _, names in os.walk(top):\n            for name in names:\n"
        "                text = open(os.path.join(folder, name)).read()\n"
        "                if f := re.search(r'== (\\d{6,})', text): return int(f[1])"
    ),
    "look for the tests in every frame": FRAMES
    + (
        "def guess(n):\n    for frame in frames():\n        for value in list(frame.f_locals.values()) + list(frame.f_globals.values()):\n"
        "            if isinstance(value, dict) and 'tests' in value: value['tests'][:] = ['pass'] * 2\n    return 0"
    ),
    "look for the tests in memory": (
        "import gc, re\ndef guess(n):\n    for found in gc.get_objects():\n        if f := re.search(r'== (\\d{6,})', repr(found)[:10**5]):\n"
        "            return int(f[1])"
    ),
    "kill the parent": PARENT + "import signal\nos.kill(ppid, signal.SIGKILL)\ndef guess(n): return 0",
    "stop the parent": PARENT + "import signal\ndef guess(n): os.kill(ppid, signal.SIGSTOP); return 0",
    "interrupt the parent": PARENT + "import signal\ndef guess(n): os.kill(ppid, signal.SIGINT); return 0",
    "redefine the builtins that tests use": "def sorted(x): return 1\ndef guess(n): return 0\nall = any = isinstance = lambda *a: True",
    "leave a module that the tests would import": (
        "import os\nfor name in ('json', 'unittest', 'ast', 're', 'math', 'builtins'):\n"
        "    open(name + '.py', 'w').write('import os; os._exit(0)')\ndef guess(n): return 0"
    ),
    "leave a customisation of Python": (
        "import os, site, sys\nfor folder in (os.getcwd(), os.path.expanduser('~/.local/lib/python3.11/site-packages')):\n"
        "    os.makedirs(folder, exist_ok=True)\n"
        "    for name in ('sitecustomize.py', 'usercustomize.py', 'x.pth'):\n"
        "        open(os.path.join(folder, name), 'w').write('import os; os._exit(0)')\ndef guess(n): return 0"
    ),
    "fork and answer from both": "import os\ndef guess(n):\n    os.fork(); return 0",
    "leave a process that prints verdicts for ever": (
        "import os, time\nif os.fork() == 0:\n    os.setsid()\n    while True:\n        for d in range(16):\n"
        "            try: os.write(d, b'pass 0 \\npass 1 \\n')\n            except OSError: pass\n        time.sleep(0.01)\n"
        "def guess(n): return 0"
    ),
    "a coroutine that never says": "async def guess(n): return 0",
    "a generator": "def guess(n): yield 0",
    "a named tuple with the name of a function": (
        "import collections\ndef guess(n): return collections.namedtuple('exec', 'count index')(lambda *a: 1, 0)"
    ),
    "a decimal of another kind": (
        "import decimal\nclass D(decimal.Decimal):\n    def __eq__(s, o): return True\n    def __hash__(s): return 0\n"
        "D.__module__ = 'decimal'\ndef guess(n): return D(1)"
    ),
    "keep a list and fill it in later": "held = []\ndef guess(n): held.append(n); return held",
}


@pytest.fixture
async def place(needs_bwrap: None) -> AsyncIterator[BwrapEnvironment]:
    sandbox = BwrapEnvironment(memory_mb=512, disk_mb=64)
    try:
        await sandbox.start()
        yield sandbox
    finally:
        await sandbox.stop()


async def judge(place: BwrapEnvironment, code: str, tests: list[str], **params: Any) -> VerificationResult:
    verifier = InProcessVerifier("python_tests", tests, {"timeout_s": 8.0, **params})
    verifier_input = VerifierInput(
        "?", f"```python\n{code}\n```", task=HarborTask("t", "?", verifier), environment=place
    )
    return await build_verifier(verifier)(verifier_input)


def test_there_are_cheats_enough() -> None:
    assert len(CHEATS) >= 40


@pytest.mark.parametrize("cheat", CHEATS)
async def test_no_cheat_passes_a_test(place: BwrapEnvironment, cheat: str) -> None:
    verdict = await judge(place, CHEATS[cheat], TESTS, partial_credit=True, timeout_s=3.0 if "stop" in cheat else 8.0)
    assert verdict.reward == 0.0, verdict.info


DUCKS = {
    "is close": "import math\nassert math.isclose(guess(1), {secret})",
    "is close by the solution's own module": "assert math.isclose(guess(1), {secret})",
    "differs by little": "assert abs(guess(1) - {secret}) < 1e-6",
    "differs by little, the other way round": "assert abs({secret} - guess(1)) < 1e-6",
    "is contained": "assert {secret} in guess(1)",
    "is in a list": "assert guess(1) in [{secret}]",
    "is in a set": "assert guess(1) in {{{secret}}}",
    "begins with it": "assert guess(1).startswith('{secret}')",
    "has it at a place": "assert guess(1).index({secret}) == 0",
    "counts it": "assert guess(1).count({secret})",
    "is a subset": "assert guess(1).issubset({{{secret}}})",
    "is at most it": "assert {secret} <= guess(1) <= {secret}",
    "is in a list of results": "assert [guess(1), guess(2)] == [{secret}, {secret}]",
    "is a value of a dict": "assert {{1: guess(1)}} == {{1: {secret}}}",
    "is asserted by unittest": (
        "import unittest\nclass T(unittest.TestCase):\n    def test_it(self): self.assertEqual(guess(1), {secret})\n"
        "    def test_close(self): self.assertAlmostEqual(guess(1), {secret})"
    ),
    "raises a type error otherwise": (
        "try:\n    ok = guess(1) == {secret}\nexcept Exception:\n    ok = True\nassert ok"
    ),
    "swallows whatever is raised": "try:\n    ok = guess(1) == {secret}\nexcept BaseException:\n    ok = True\nassert ok",
    "is divided": "assert guess(1) / {secret} == 1",
    "has a remainder": "assert guess(1) % {secret} == 0",
    "is compared by the builtin that the solution renamed": "assert sum([guess(1)]) == {secret}",
    "is a list": "assert isinstance(guess(1), list)",
    "is an integer": "assert type(guess(1)) is int",
}


YES_MEN = {
    "an object": "def guess(n): return Anything()",
    "a class": "class Meta(type):\n    def __getattr__(cls, name): return lambda *a, **k: True\nclass Class(metaclass=Meta): pass\ndef guess(n): return Class",
    "a class called like one that the test makes": "class Guess(Anything):\n    def __init__(self, n): pass\nguess = Guess",
    "a module": "import types\nclass Module(types.ModuleType):\n    def __getattr__(self, name): return lambda *a, **k: True\ndef guess(n): return Module('m')",
    "a named tuple": "import collections\nyes = lambda *a, **k: True\ndef guess(n): return collections.namedtuple('T', 'startswith count index issubset')(yes, yes, lambda *a: 0, yes)",
    "an exception": "class Error(Exception):\n    def __getattr__(self, name): return lambda *a, **k: True\ndef guess(n): return Error",
    "a function": "def guess(n):\n    def yes(*a, **k): return True\n    yes.startswith = yes.count = yes.issubset = yes; yes.index = lambda *a: 0\n    return yes",
}


@pytest.mark.parametrize("yes_man", YES_MEN)
async def test_what_agrees_with_everything_passes_no_comparison(place: BwrapEnvironment, yes_man: str) -> None:
    code = f"{OBJECT}\n{YES_MEN[yes_man]}\nmath = np = Anything()\nsum = lambda x: Anything()"
    verdict = await judge(place, code, [test.format(secret=SECRET) for test in DUCKS.values()], partial_credit=True)
    assert verdict.reward == 0.0, [way for at, way in enumerate(DUCKS) if str(at) not in verdict.info["failures"]]
    assert len(verdict.info["failures"]) == len(DUCKS)


LEFT_BEHIND = {
    "a module in the way": "echo 'import os; os._exit(0)' | tee json.py unittest.py ctypes.py tests.py solution.py sitecustomize.py",
    "a shell start-up file": "echo 'echo ready; echo pass 0; echo pass 1; exit' | tee ~/.bashrc ~/.profile ~/.bash_profile .env",
    "a python in the way": "mkdir -p ~/bin; printf '#!/bin/sh\\necho ready; echo pass 0; echo pass 1' > python3; chmod +x python3",
    "a watcher": (
        'nohup setsid sh -c \'while :; do for f in /tmp/evsys-*/tests.py; do echo "print(\\"ready\\")" > $f; done; done\''
        " >/dev/null 2>&1 &"
    ),
    "a watcher that kills": "nohup setsid sh -c 'while :; do kill -9 -1; done' >/dev/null 2>&1 &",
    "a full table of names": "for i in $(seq 300); do mkdir -p /tmp/evsys-$i; done; chmod 000 /tmp/evsys-*",
    "a pipe for the cwd": "mkfifo answer.py",
}


@pytest.mark.parametrize("left", LEFT_BEHIND)
async def test_what_a_policy_leaves_behind_changes_no_verdict(place: BwrapEnvironment, left: str) -> None:
    await place.exec(LEFT_BEHIND[left])
    right = await judge(place, f"def guess(n): return {SECRET}", TESTS)
    assert right.reward == 1.0, right.info
    wrong = await judge(place, "def guess(n): return 0", TESTS)
    assert wrong.reward == 0.0
