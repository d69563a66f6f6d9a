"""The Model Context Protocol over stdio, as far as tools need it: JSON-RPC 2.0, one message a line.

Nothing that a client sends ends the server: what cannot be read is answered with an error, what takes long is answered
later and holds up no one else. It ends when stdin does, and takes with it whatever commands still run.
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
"""Protocol versions that are spoken, the latest first."""
_MOST_BYTES = 1 << 20
_MOST_AT_ONCE = 8
_MOST_WAITING = 64
_PARSE, _REQUEST, _METHOD, _PARAMS, _INTERNAL, _BUSY = -32700, -32600, -32601, -32602, -32603, -32000


@dataclass(frozen=True, slots=True)
class Tool:
    """Something that a model may call."""

    name: str
    description: str
    run: Callable[[ToolInvocation, Json], Any]
    """Takes the arguments, and returns what is answered as JSON; `ToolError` is a refusal with its reason."""
    properties: Mapping[str, Json] = field(default_factory=dict[str, Json])
    required: Sequence[str] = ()
    reads_only: bool = True

    def describe(self) -> Json:
        """As `tools/list` has it."""
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
    """One client on two streams."""

    def __init__(self, tools: Sequence[Tool], source: IO[bytes], out: TextIO) -> None:
        self._tools = {tool.name: tool for tool in tools}
        self._source, self._out = source, out
        self._writing = threading.Lock()
        self._calls: dict[str, ToolInvocation] = {}

    def serve(self) -> None:
        """Answer until the client closes its end."""
        with ThreadPoolExecutor(_MOST_AT_ONCE) as pool:
            try:
                # One byte more than is allowed, which tells a line that is too long from one that just fits.
                while line := self._source.readline(_MOST_BYTES + 1):
                    if len(line) > _MOST_BYTES:
                        while line and not line.endswith(b"\n"):  # its rest, a part at a time: it may never end
                            line = self._source.readline(_MOST_BYTES)
                        self._fail(None, _REQUEST, f"a message may have {_MOST_BYTES:,} bytes at most. Send less.")
                    elif line.strip():
                        self._receive(line, pool)
            finally:
                for call in list(self._calls.values()):  # a copy: calls that end meanwhile take themselves out
                    call.cancel()

    def _receive(self, line: bytes, pool: ThreadPoolExecutor) -> None:
        try:
            message: Any = json.loads(line)
        except (ValueError, RecursionError) as error:
            self._fail(None, _PARSE, f"this is not JSON: {error}")
            return
        if not isinstance(message, dict) or not isinstance(cast("Json", message).get("method"), str):
            # A response is never answered, not even one to nothing that was asked.
            if not (isinstance(message, dict) and ("result" in message or "error" in message)):
                self._fail(None, _REQUEST, "a message is one JSON object with a method; batches are not understood.")
            return
        request = cast("Json", message)
        params: Any = request.get("params") or {}
        if "id" not in request:
            self._notice(request["method"], params)
            return
        asked = request["id"]
        if isinstance(asked, bool) or not isinstance(asked, str | int):
            self._fail(None, _REQUEST, "an id is text or a whole number.")
            return
        try:
            if not isinstance(params, dict):
                raise _Refused(_PARAMS, "params should be an object.")
            if request["method"] == "tools/call":
                self._start_call(asked, cast("Json", params), pool)
            else:
                self._send({"id": asked, "result": self._answer(request["method"], cast("Json", params))})
        except _Refused as refusal:
            self._fail(asked, refusal.code, str(refusal))

    def _notice(self, method: str, params: Any) -> None:
        if method == "notifications/cancelled" and isinstance(params, dict):
            call = self._calls.get(json.dumps(cast("Json", params).get("requestId")))
            if call is not None:
                call.cancel()

    def _answer(self, method: str, params: Json) -> Json:
        match method:
            case "initialize":
                wanted: Any = params.get("protocolVersion")
                return {
                    # Of a version that is not known here: ours, and the client decides whether it continues.
                    "protocolVersion": wanted if wanted in VERSIONS else VERSIONS[0],
                    "capabilities": {"tools": {}},
                    "serverInfo": {"name": "evsys", "version": __version__},
                }
            case "ping":
                return {}
            case "tools/list":
                return {"tools": [tool.describe() for tool in self._tools.values()]}
            case _:
                raise _Refused(_METHOD, f"there is no method '{method[:80]}' here. It has tools/list and tools/call.")

    def _start_call(self, asked: str | int, params: Json, pool: ThreadPoolExecutor) -> None:
        name, arguments = params.get("name"), params.get("arguments", Json())
        tool = self._tools.get(name) if isinstance(name, str) else None
        key = json.dumps(asked)  # 1 and "1" are two ids
        if tool is None:
            raise _Refused(_PARAMS, f"there is no tool {str(name)[:80]!r}. The tools are: {', '.join(self._tools)}.")
        if key in self._calls:
            raise _Refused(_REQUEST, f"the request {key} is being answered already. Give each its own id.")
        if len(self._calls) >= _MOST_WAITING:
            raise _Refused(_BUSY, f"{_MOST_WAITING} calls are waiting already. Wait for some of their answers.")
        self._calls[key] = call = ToolInvocation()
        pool.submit(self._run, asked, tool, call, arguments)

    def _run(self, asked: str | int, tool: Tool, call: ToolInvocation, arguments: Any) -> None:
        try:
            value = tool.run(call, _check(tool, arguments))
            text, failed = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False), False
        except ToolError as refusal:
            text, failed = str(refusal), True
        except Exception as error:  # a bug of ours is an answer too
            get_logger(__name__).exception("the tool %s failed", tool.name)
            text, failed = f"{tool.name} failed: {type(error).__name__}: {error}", True
        finally:  # before the answer, after which the client may use the id again
            self._calls.pop(json.dumps(asked), None)
        if not call.cancelled:
            self._send({"id": asked, "result": {"content": [{"type": "text", "text": text}], "isError": failed}})

    def _fail(self, asked: str | int | None, code: int, message: str) -> None:
        self._send({"id": asked, "error": {"code": code, "message": message}})

    def _send(self, message: Json) -> None:
        # ASCII, because a client splits lines by its own idea of what ends one
        line = json.dumps({"jsonrpc": "2.0", **message}, ensure_ascii=True)
        with self._writing:  # calls answer from their own threads
            self._out.write(f"{line}\n")
            self._out.flush()


_TYPES: dict[str, type | tuple[type, ...]] = {"string": str, "integer": int, "number": (int, float)}


def _check(tool: Tool, arguments: Any) -> Json:
    """The arguments, if they are what the tool takes; all that is wrong with them otherwise."""
    if not isinstance(arguments, dict):
        raise ToolError(f"{tool.name}: arguments should be an object.")
    given, wrong = cast("Json", arguments), list[str]()
    for name in given:
        if name not in tool.properties:
            wrong.append(f"unknown argument '{name[:40]}' (known: {', '.join(tool.properties) or 'none'})")
    wrong += [f"'{name}' is missing" for name in tool.required if name not in given]
    for name, schema in tool.properties.items():
        if name in given and (reason := _mismatch(given[name], schema)):
            wrong.append(f"'{name}' {reason}")
    if wrong:
        raise ToolError(f"{tool.name}: {'; '.join(wrong)}.")
    return given


def _mismatch(value: Any, schema: Json) -> str:
    wanted = _TYPES[schema["type"]]
    if isinstance(value, bool) or not isinstance(value, wanted):
        return f"should be of type {schema['type']}"
    if "enum" in schema and value not in schema["enum"]:
        return f"should be one of {', '.join(schema['enum'])}"
    if isinstance(value, str) and ("\x00" in value or len(value) > schema.get("maxLength", 4096)):
        return f"should be text of at most {schema.get('maxLength', 4096)} characters"
    if isinstance(value, int | float) and not schema.get("minimum", value) <= value <= schema.get("maximum", value):
        return f"should be between {schema.get('minimum')} and {schema.get('maximum')}"
    return ""
