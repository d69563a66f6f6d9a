"""The part of the Model Context Protocol that tools need, over stdio: JSON-RPC 2.0, one message per line.

No message of a client ends the server: invalid ones are answered with an error, and long calls run in threads. The
server ends with stdin and kills the commands that still run.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import IO, Any, TextIO, cast

from ..._version import __version__
from ...log import get_logger
from .commands import ToolError, ToolInvocation

Json = dict[str, Any]

VERSIONS = ("2025-11-25", "2025-06-18", "2025-03-26", "2024-11-05")
"""Supported protocol versions, the latest first."""
_MOST_BYTES = 1 << 20
_MOST_AT_ONCE = 8
_MOST_WAITING = 64
_PARSE, _REQUEST, _METHOD, _PARAMS, _INTERNAL, _BUSY = -32700, -32600, -32601, -32602, -32603, -32000


@dataclass(frozen=True, slots=True)
class Tool:
    """A tool that a model may call."""

    name: str
    description: str
    run: Callable[[ToolInvocation, Json], Any]
    """Takes the arguments and returns the JSON answer; raises `ToolError` with a message."""
    properties: Mapping[str, Json] = field(default_factory=dict[str, Json])
    required: Sequence[str] = ()
    reads_only: bool = True

    def describe(self) -> Json:
        """The entry in `tools/list`."""
        schema: Json = {"type": "object", "properties": dict(self.properties), "additionalProperties": False}
        schema |= {"required": list(self.required)} if self.required else {}
        hints = {"annotations": {"readOnlyHint": True}} if self.reads_only else {}
        return {"name": self.name, "description": self.description, "inputSchema": schema, **hints}


class _Refused(Exception):
    """A request that is answered with a JSON-RPC error."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


class McpServer:
    """Serves one client on two streams."""

    def __init__(self, tools: Sequence[Tool], source: IO[bytes], out: TextIO) -> None:
        self._tools = {tool.name: tool for tool in tools}
        self._source, self._out = source, out
        self._writing = threading.Lock()
        self._calls: dict[str, ToolInvocation] = {}

    def serve(self) -> None:
        """Answer messages until the client closes its stream."""
        with ThreadPoolExecutor(_MOST_AT_ONCE) as pool:
            try:
                # One byte more than allowed, to detect lines that are too long.
                while line := self._source.readline(_MOST_BYTES + 1):
                    if len(line) > _MOST_BYTES:
                        while line and not line.endswith(b"\n"):  # skip the rest in parts: it may be endless
                            line = self._source.readline(_MOST_BYTES)
                        self._fail(None, _REQUEST, f"a message may have {_MOST_BYTES:,} bytes at most. Send less.")
                    elif line.strip():
                        self._receive(line, pool)
            finally:
                for call in list(self._calls.values()):  # a copy, because ended calls remove themselves
                    call.cancel()

    def _receive(self, line: bytes, pool: ThreadPoolExecutor) -> None:
        try:
            message: Any = json.loads(line)
        except (ValueError, RecursionError) as error:
            self._fail(None, _PARSE, f"this is not JSON: {error}")
            return
        if not isinstance(message, dict) or not isinstance(cast("Json", message).get("method"), str):
            # A response is never answered.
            if not (isinstance(message, dict) and ("result" in message or "error" in message)):
                self._fail(None, _REQUEST, "a message is one JSON object with a method; batches are not understood.")
            return
        request = cast("Json", message)
        params: Any = request.get("params") or {}
        if "id" not in request:
            self._notice(request["method"], params)
            return
        request_id = request["id"]
        if isinstance(request_id, bool) or not isinstance(request_id, str | int):
            self._fail(None, _REQUEST, "an id is text or a whole number.")
            return
        try:
            if not isinstance(params, dict):
                raise _Refused(_PARAMS, "params should be an object.")
            if request["method"] == "tools/call":
                self._start_call(request_id, cast("Json", params), pool)
            else:
                self._send({"id": request_id, "result": self._answer(request["method"], cast("Json", params))})
        except _Refused as refusal:
            self._fail(request_id, refusal.code, str(refusal))

    def _notice(self, method: str, params: Any) -> None:
        if method == "notifications/cancelled" and isinstance(params, dict):
            call = self._calls.get(json.dumps(cast("Json", params).get("requestId")))
            if call is not None:
                call.cancel()

    def _answer(self, method: str, params: Json) -> Json:
        match method:
            case "initialize":
                version: Any = params.get("protocolVersion")
                return {
                    # For an unknown version ours, and the client decides whether to continue.
                    "protocolVersion": version if version in VERSIONS else VERSIONS[0],
                    "capabilities": {"tools": {}},
                    "serverInfo": {"name": "evsys", "version": __version__},
                }
            case "ping":
                return {}
            case "tools/list":
                return {"tools": [tool.describe() for tool in self._tools.values()]}
            case _:
                raise _Refused(_METHOD, f"there is no method '{method[:80]}' here. It has tools/list and tools/call.")

    def _start_call(self, request_id: str | int, params: Json, pool: ThreadPoolExecutor) -> None:
        name, arguments = params.get("name"), params.get("arguments", Json())
        tool = self._tools.get(name) if isinstance(name, str) else None
        key = json.dumps(request_id)  # 1 and "1" are two ids
        if tool is None:
            raise _Refused(_PARAMS, f"there is no tool {str(name)[:80]!r}. The tools are: {', '.join(self._tools)}.")
        if key in self._calls:
            raise _Refused(_REQUEST, f"a request with id {key} is running. Give each request another id.")
        if len(self._calls) >= _MOST_WAITING:
            raise _Refused(_BUSY, f"{_MOST_WAITING} calls are waiting already. Wait for some of their answers.")
        self._calls[key] = call = ToolInvocation()
        pool.submit(self._run, request_id, tool, call, arguments)

    def _run(self, request_id: str | int, tool: Tool, call: ToolInvocation, arguments: Any) -> None:
        try:
            value = tool.run(call, _check(tool, arguments))
            text, failed = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False), False
        except ToolError as refusal:
            text, failed = str(refusal), True
        except Exception as error:  # a bug of evsys is answered too
            get_logger(__name__).exception("the tool %s failed", tool.name)
            text, failed = f"{tool.name} failed: {type(error).__name__}: {error}", True
        finally:  # before the answer, because the client may then reuse the id
            self._calls.pop(json.dumps(request_id), None)
        if not call.cancelled:
            self._send({"id": request_id, "result": {"content": [{"type": "text", "text": text}], "isError": failed}})

    def _fail(self, request_id: str | int | None, code: int, message: str) -> None:
        self._send({"id": request_id, "error": {"code": code, "message": message}})

    def _send(self, message: Json) -> None:
        # ASCII, because clients may split lines at Unicode separators
        line = json.dumps({"jsonrpc": "2.0", **message}, ensure_ascii=True)
        with self._writing:  # calls answer from several threads
            self._out.write(f"{line}\n")
            self._out.flush()


_TYPES: dict[str, type | tuple[type, ...]] = {"string": str, "integer": int, "number": (int, float)}


def _check(tool: Tool, arguments: Any) -> Json:
    """The arguments of a tool; ToolError with all their problems."""
    if not isinstance(arguments, dict):
        raise ToolError(f"{tool.name}: arguments should be an object.")
    checked, problems = cast("Json", arguments), list[str]()
    for name in checked:
        if name not in tool.properties:
            problems.append(f"unknown argument '{name[:40]}' (known: {', '.join(tool.properties) or 'none'})")
    problems += [f"'{name}' is missing" for name in tool.required if name not in checked]
    for name, schema in tool.properties.items():
        if name in checked and (reason := _mismatch(checked[name], schema)):
            problems.append(f"'{name}' {reason}")
    if problems:
        raise ToolError(f"{tool.name}: {'; '.join(problems)}.")
    return checked


def _mismatch(value: Any, schema: Json) -> str:
    expected = _TYPES[schema["type"]]
    if isinstance(value, bool) or not isinstance(value, expected):
        return f"should be of type {schema['type']}"
    if "enum" in schema and value not in schema["enum"]:
        return f"should be one of {', '.join(schema['enum'])}"
    if isinstance(value, str) and ("\x00" in value or len(value) > schema.get("maxLength", 4096)):
        return f"should be text of at most {schema.get('maxLength', 4096)} characters"
    if isinstance(value, int | float) and not schema.get("minimum", value) <= value <= schema.get("maximum", value):
        return f"should be between {schema.get('minimum')} and {schema.get('maximum')}"
    return ""
