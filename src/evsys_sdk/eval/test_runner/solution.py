"""The process of the solution: runs the policy's code and serves calls to what it defines.

Even if the code manipulates this process, it can send only answers, which are data.
"""

# pyright: reportUnknownArgumentType=false, reportUnknownLambdaType=false
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# The values are of any type, and the Python is that of the sandbox.

from __future__ import annotations

import builtins
import io
import operator
import os
import sys
import types

from .values import Garbage, decode, encode, receive, send

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

MOST_PRINTED = 1_000_000
CHANGEABLE = (list, dict, set, bytearray)


class Server:
    """Serves the requests of the tests, and keeps the objects that the tests may refer to."""

    def __init__(self, source: int, sink: int) -> None:
        self._source, self._sink = source, sink
        self._objects: list[Any] = []  # never freed, because the tests may use any of them again
        # By `id`, which is unique because the objects in that list are never freed.
        self._numbers: dict[int, int] = {}

    def serve(self) -> None:
        while True:
            try:
                request = receive(self._source)
            except EOFError:
                return
            self._reply(request)

    def _reply(self, request: Any) -> None:
        printed = sys.stdout = io.StringIO()
        try:
            # Encode the arguments before and after, because a function may change them in place.
            arguments = decode(request["given"], self._resolve)
            before = [encode(argument, self._export) for argument in arguments]
            result = self._run(request["do"], arguments)
            changed: dict[str, Any] = {}
            for at, argument in enumerate(arguments):
                now = encode(argument, self._export) if isinstance(argument, CHANGEABLE) else before[at]
                if now != before[at]:
                    changed[str(at)] = now
            answer = {"value": encode(result, self._export), "changed": changed}
        except BaseException as error:  # including SystemExit, because the tests need an answer
            answer = {"error": self._describe(error)}
        answer["printed"] = printed.getvalue()[:MOST_PRINTED]
        try:
            send(self._sink, answer)
        except Garbage as error:
            send(self._sink, {"error": self._describe(error), "printed": ""})

    def _run(self, do: str, arguments: list[Any]) -> Any:
        if do == "load":
            return self._load(arguments[0])
        if do == "import":
            __import__(arguments[0])
            return sys.modules[arguments[0]]
        if do == "call":
            function, names, values, *args = arguments
            result = function(*args, **{name: values[at] for at, name in enumerate(names)})
            return _Waited(result) if isinstance(result, types.CoroutineType) else result
        if do == "dir":
            return [name for name in dir(arguments[0]) if not name.startswith("__")]
        return (getattr(operator, do) if hasattr(operator, do) else getattr(builtins, do))(*arguments)

    def _load(self, code: str) -> Any:
        """Run the code as the module `solution`; return its names and values."""
        module = types.ModuleType("solution")
        if code:
            sys.modules["solution"] = module
        exec(compile(code, "solution.py", "exec"), module.__dict__)
        return [(name, value) for name, value in list(vars(module).items()) if not name.startswith("__")]

    def _export(self, value: Any) -> Any:
        if isinstance(value, _Waited):
            return {"waited": encode(__import__("asyncio").run(value.coroutine), self._export)}
        number = self._numbers.get(id(value))
        if number is None:
            number = self._numbers[id(value)] = len(self._objects)
            self._objects.append(value)
        kind = "object"
        if isinstance(value, type):
            kind = "exception" if issubclass(value, BaseException) else "class"
        elif isinstance(value, types.ModuleType):
            kind = "module"
        name = str(getattr(value, "__name__", None) or type(value).__name__)
        return {"object": [number, kind, name, _builtin_base(value) if kind == "exception" else ""]}

    def _resolve(self, tag: str, content: Any) -> Any:
        if tag == "own":
            return self._objects[content]
        if tag == "callback":
            return lambda *args, **kwargs: self._call_back(content, args, kwargs)
        if tag == "builtin":
            return getattr(builtins, content)
        raise Garbage(f"unknown tag {tag!r}")

    def _call_back(self, number: int, args: Any, kwargs: Any) -> Any:
        """Call a function in the process of the tests."""
        arguments = [list(args), kwargs]
        send(self._sink, {"callback": number, "given": encode(arguments, self._export)})
        answer = receive(self._source)
        if "raised" in answer:
            raise getattr(builtins, answer["raised"][0], RuntimeError)(answer["raised"][1])
        return decode(answer["value"], self._resolve)

    def _describe(self, error: BaseException) -> Any:
        try:
            text = str(error)
        except BaseException:
            text = ""
        try:
            args = encode(list(error.args), self._export)
        except BaseException:
            args = [text]
        own_type = self._export(type(error)) if not _is_builtin(type(error)) else None
        return {"base": _builtin_base(type(error)), "own": own_type, "text": text[:10_000], "args": args}


class _Waited:
    """A coroutine, which runs in this process; the tests await its result."""

    def __init__(self, coroutine: Any) -> None:
        self.coroutine = coroutine


def _is_builtin(kind: type) -> bool:
    return getattr(builtins, kind.__name__, None) is kind


def _builtin_base(kind: Any) -> str:
    return next(base.__name__ for base in kind.__mro__ if _is_builtin(base))


def main() -> None:
    """Serve the parent process over the initial stdin and stdout."""
    # Move the two pipes to other descriptors and redirect 0, 1 and 2 to /dev/null for the code.
    source, sink = os.dup(0), os.dup(1)
    nowhere = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(nowhere, stream)
    sys.path[:] = [os.getcwd(), *sys.argv[1:]]
    del sys.argv[1:]
    Server(source, sink).serve()


if __name__ == "__main__":
    main()
