"""Stand-ins for the solution in the process of the tests: callable functions, remote objects, and plain data."""

# pyright: reportUnknownArgumentType=false, reportUnknownLambdaType=false
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# The values are of any type, and the Python is that of the sandbox.

from __future__ import annotations

import builtins
import os
import sys

from .values import PLAIN_METHODS, Garbage, decode, encode, receive, send

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any


_CREATED = "an object"


class NotPlain(BaseException):  # not an Exception, so that a test that expects one does not catch it
    """The tests need plain data and got an object of the solution."""

    raised: list[str] = []

    def __init__(self, why: str) -> None:
        super().__init__(why)
        self.raised.append(why)  # the test fails even if it catches this


class Died(NotPlain):
    """The process of the solution has ended."""


class Channel:
    """Starts the process of the solution and sends it requests, one at a time."""

    def __init__(self, program: str) -> None:
        requests, self._sink = os.pipe()
        self._source, answers = os.pipe()
        null = os.open(os.devnull, os.O_WRONLY)
        actions = [(os.POSIX_SPAWN_DUP2, source, at) for at, source in enumerate((requests, answers, null))]
        # Python's descriptors are close-on-exec, so the process inherits only these three.
        command = [sys.executable, "-I", "-S", "-c", program, *sys.path]  # -S: the path replaces `site`
        self._process = os.posix_spawn(sys.executable, command, os.environ, file_actions=actions)
        for descriptor in (requests, answers, null):
            os.close(descriptor)
        self._callbacks: list[Any] = []
        self._exceptions: dict[int, type] = {}
        self.made: set[int] = set()
        self.n_requests = 0

    def ask(self, do: str, *arguments: Any) -> Any:
        """Send a request and return the answer; raise what the solution raised, as the nearest builtin exception."""
        self.n_requests += 1
        try:
            send(self._sink, {"do": do, "given": encode(list(arguments), self._export)})
            answer = receive(self._source)
            while "callback" in answer:
                send(self._sink, self._call_back(answer))
                answer = receive(self._source)
            value, error = self._take(answer, arguments)
        except (EOFError, OSError):
            raise Died("the solution ended its process") from None
        except (Garbage, KeyError, IndexError, TypeError, ValueError, AttributeError) as problem:
            self.end()
            raise Died(f"the solution answered with something that is not data: {problem}") from None
        if isinstance(error, (StopIteration, StopAsyncIteration, GeneratorExit)) and do != "next":
            # As in Python's generators, because in `map` or a loop of a test it would end the test early.
            raise RuntimeError(f"the solution raised {type(error).__name__}") from None
        if error is not None:
            raise error
        return value

    def end(self) -> None:
        if self._process:
            os.kill(self._process, 9)
            os.waitpid(self._process, 0)
            self._process = 0

    def _take(self, answer: Any, arguments: Any) -> tuple[Any, BaseException | None]:
        sys.stdout.write(str(answer["printed"]))
        if "error" in answer:
            return None, self._exception(answer["error"])
        for at, new in answer["changed"].items():
            restore(arguments[int(at)], decode(new, self._resolve))
        return decode(answer["value"], self._resolve), None

    def _export(self, value: Any) -> Any:
        if isinstance(value, Proxy):
            return {"own": value._number}
        if isinstance(value, type) and value in self._exceptions.values():
            return {"own": next(number for number, kind in self._exceptions.items() if kind is value)}
        if getattr(builtins, getattr(value, "__name__", ""), None) is value:
            return {"builtin": value.__name__}
        if callable(value):
            self._callbacks.append(value)
            return {"callback": len(self._callbacks) - 1}
        raise NotPlain(f"a test cannot hand a {type(value).__name__} to the solution, only plain data")

    def _resolve(self, tag: str, content: Any) -> Any:
        if tag == "waited":
            return _await(decode(content, self._resolve))
        if tag != "object":
            raise Garbage(f"unknown tag {tag!r}")
        number, kind, name, base = int(content[0]), str(content[1]), str(content[2]), str(content[3])
        if kind == "exception":
            return self._exceptions.setdefault(number, type(name, (_exception_type(base),), {}))
        proxy = Proxy(self, number, kind, name)
        if number in self.made:
            mark(proxy, _CREATED)
        return proxy

    def _call_back(self, answer: Any) -> Any:
        args, kwargs = decode(answer["given"], self._resolve)
        try:
            return {"value": encode(self._callbacks[answer["callback"]](*args, **kwargs), self._export)}
        except Exception as error:
            return {"raised": [type(error).__name__, str(error)[:10_000]]}

    def _exception(self, description: Any) -> BaseException:
        kind = _exception_type(str(description["base"]))
        if description["own"] is not None:
            kind = self._resolve("object", description["own"]["object"])
        try:
            return kind(*decode(description["args"], self._resolve))
        except Exception:  # the exception needs other arguments
            return kind.__new__(kind)


def _exception_type(name: str) -> Any:
    kind = getattr(builtins, name, None)
    return kind if isinstance(kind, type) and issubclass(kind, BaseException) else Exception


async def _await(value: Any) -> Any:
    return value


def restore(old: Any, new: Any) -> None:
    """Apply the solution's changes of an argument in place; keep nested objects whose type is unchanged."""
    if type(old) is not type(new):
        return
    if isinstance(old, list):
        old[:] = [_keep(old[at], item) if at < len(old) else item for at, item in enumerate(new)]
    elif isinstance(old, dict):
        merged = {key: _keep(old[key], value) if key in old else value for key, value in new.items()}
        old.clear()
        old.update(merged)
    elif isinstance(old, set):
        old.clear()
        old.update(new)
    elif isinstance(old, bytearray):
        old[:] = new


def _keep(old: Any, new: Any) -> Any:
    if isinstance(old, (list, dict, set, bytearray)) and type(old) is type(new):
        restore(old, new)
        return old
    return new


class Proxy:
    """Refers to an object in the process of the solution.

    The solution compares two such objects. Comparisons with plain data are refused, and so are uses in place of plain
    data, because the solution could always answer that its object equals or contains the expected value.
    """

    def __init__(self, channel: Channel, number: int, kind: str, name: str) -> None:
        # Bypass `__setattr__`, which would set them on the remote object.
        self.__dict__.update(_channel=channel, _number=number, _kind=kind, _name=name, _marked_as="")

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        result = self._channel.ask("call", self, list(kwargs), list(kwargs.values()), *args)
        if self._marked_as[:1].isupper() and isinstance(result, Proxy):
            self._channel.made.add(result._number)  # the test created it from a class that it refers to by name
            mark(result, _CREATED)
        return result

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # Python looks these up implicitly, and the solution must not define them
            raise AttributeError(name)
        value = self._channel.ask("getattr", self, name)
        if self._marked_as:
            mark(value, name)
        elif isinstance(value, Proxy) and name in PLAIN_METHODS:
            self._refuse(f"has no method {name} that counts")
        return value

    def __setattr__(self, name: str, value: Any) -> None:
        self._channel.ask("setattr", self, name, value)

    def __dir__(self) -> Any:
        return self._channel.ask("dir", self)

    def __eq__(self, other: Any) -> bool:
        same = isinstance(other, Proxy) and other._number == self._number
        return same or self._compare("eq", other)

    def __ne__(self, other: Any) -> bool:
        return not self == other

    def __hash__(self) -> int:
        return hash(self._number)

    def __bool__(self) -> bool:
        return self._channel.ask("truth", self) is True

    def __instancecheck__(self, instance: Any) -> bool:
        return isinstance(instance, Proxy) and self._channel.ask("isinstance", instance, self) is True

    def __subclasscheck__(self, subclass: Any) -> bool:
        return isinstance(subclass, Proxy) and self._channel.ask("issubclass", subclass, self) is True

    def __mro_entries__(self, bases: Any) -> Any:
        self._refuse("cannot be a base class in a test")

    def __reduce_ex__(self, protocol: Any) -> Any:
        self._refuse("cannot be copied by a test")

    def __enter__(self) -> Any:
        return self._channel.ask("call", self._channel.ask("getattr", self, "__enter__"), [], [])

    def __exit__(self, *raised: Any) -> None:  # never suppresses exceptions: one may be a failed assertion
        self._channel.ask("call", self._channel.ask("getattr", self, "__exit__"), [], [], None, None, None)

    def _compare(self, do: str, other: Any) -> bool:
        is_allowed = do == "contains" and self._marked_as == _CREATED  # `in` on an object that the test created
        if not isinstance(other, Proxy) and not is_allowed:
            self._refuse(f"cannot be compared with a {type(other).__name__}")
        return self._channel.ask(do, self, other) is True

    def _refuse(self, why: str) -> Any:
        raise NotPlain(f"the solution returned an object ({self._name}) instead of plain data; it {why}")


def mark(value: Any, name: str) -> None:
    """Mark a proxy as one that the test refers to by name, unlike one returned in an answer."""
    if isinstance(value, Proxy):
        value.__dict__["_marked_as"] = name


def _asks(do: str) -> Callable[..., Any]:
    return lambda self, *arguments: self._channel.ask(do, self, *arguments)


def _compares(do: str) -> Callable[[Any, Any], bool]:
    return lambda self, other: self._compare(do, other)


def _calculates(do: str, *, swapped: bool = False, with_plain: bool = False) -> Callable[[Any, Any], Any]:
    def operation(self: Any, other: Any) -> Any:
        if not isinstance(other, Proxy) and not with_plain:
            self._refuse(f"cannot be used in arithmetic with a {type(other).__name__}")
        return self._channel.ask(do, *((other, self) if swapped else (self, other)))

    return operation


for _name in (
    "len",
    "iter",
    "next",
    "str",
    "repr",
    "int",
    "float",
    "abs",
    "neg",
    "pos",
    "getitem",
    "setitem",
    "delitem",
):
    setattr(Proxy, f"__{_name}__", _asks(_name))
for _name in ("lt", "le", "gt", "ge", "contains"):
    setattr(Proxy, f"__{_name}__", _compares(_name))
Proxy.__index__ = _asks("int")  # pyright: ignore[reportAttributeAccessIssue]
# Tests use `-`, `/` and the like to measure the distance of a result from the expected value, but not these.
_HARMLESS = ("add", "mul", "matmul", "pow")
for _name in (*_HARMLESS, "sub", "truediv", "floordiv", "mod", "and_", "or_", "xor", "lshift", "rshift"):
    _plain = _name in _HARMLESS
    setattr(Proxy, "__{}__".format(_name.rstrip("_")), _calculates(_name, with_plain=_plain))
    setattr(Proxy, "__r{}__".format(_name.rstrip("_")), _calculates(_name, swapped=True, with_plain=_plain))
