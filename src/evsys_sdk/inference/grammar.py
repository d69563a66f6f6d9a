"""Constrained decoding: JSON of a schema, or a call of one of several tools.

    grammar = answer_grammar(tokenizer, schema={"type": "object"}, ends=renderer.stop)
    params = SamplingParams(200, make_filter=grammar)

The library is llguidance; benchmarks/grammars.py has the comparison.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from typing import Any, Final, cast
from weakref import WeakKeyDictionary

import numpy as np

from ..backends.datum import Ints
from ..data.shapes import is_object
from ..errors import DataError, MissingExtraError
from .renderer import Tokenizer, decode

# Without fixed separators a weak model may write white space up to the token limit.
_JSON_FORM: Final = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
_THOUGHT: Final = "</think>"

_CALLS: Final[dict[str, tuple[str, str, str]]] = {
    "hermes": ("<tool_call>\n", "arguments", "\n</tool_call>"),
    "llama3_json": ("", "parameters", ""),
    "mistral": ("[TOOL_CALLS][", "arguments", "]"),
}
"""Format of a call by parser name: text before the object, key of the arguments, text after the object."""

_tokenizers: WeakKeyDictionary[Any, Any] = WeakKeyDictionary()


@dataclass(frozen=True, slots=True)
class Grammar:
    """A grammar for one tokenizer; calling it creates the filter of one sample."""

    tokenizer: Tokenizer
    text: str
    """In llguidance's format."""
    ends: tuple[int, ...] = ()
    """Tokens that end an answer."""
    after_thinking: bool = False
    """Whether it applies only after the thinking that the prompt opens."""

    def __call__(self) -> GrammarFilter:
        return GrammarFilter(self)


class GrammarFilter:
    """The tokens that a grammar allows in one sample."""

    def __init__(self, grammar: Grammar) -> None:
        import llguidance

        self._grammar = grammar
        self._matcher: Any = llguidance.LLMatcher(_compiled(grammar.tokenizer), grammar.text)
        self._thinking: list[int] | None = [] if grammar.after_thinking else None
        self._allowed: Ints | None = None

    def allowed(self) -> Ints:
        """The tokens that may come next; empty if the answer is complete and no token ends it."""
        if self._allowed is None:
            self._allowed = self._compute()
        return self._allowed

    def accept(self, token: int) -> None:
        """Advance by a sampled token."""
        if self._thinking is not None:
            self._thinking.append(token)
            if _THOUGHT in decode(self._grammar.tokenizer, self._thinking[-16:]):
                self._thinking = self._allowed = None
            return
        self._allowed = None
        self._matcher.consume_token(token)

    def _compute(self) -> Ints:
        if self._thinking is not None:
            size = int(_compiled(self._grammar.tokenizer).vocab_size)
            return np.setdiff1d(np.arange(size, dtype=np.int64), self._grammar.ends)
        if error := self._matcher.get_error():
            raise DataError(f"the grammar of the answer failed: {error}")
        ends = np.array(self._grammar.ends, np.int64)
        if self._matcher.is_stopped():
            return ends
        bits = np.unpackbits(np.frombuffer(self._matcher.compute_bitmask(), np.uint8), bitorder="little")
        special = _compiled(self._grammar.tokenizer).eos_token
        tokens = np.flatnonzero(bits).astype(np.int64)
        tokens = tokens[tokens != special]
        return np.union1d(tokens, ends) if self._matcher.is_accepting() else tokens


def answer_grammar(
    tokenizer: Tokenizer,
    *,
    schema: Mapping[str, Any] | None = None,
    tools: Sequence[Mapping[str, Any]] = (),
    parser: str | None = None,
    ends: Sequence[Any] = (),
    after_thinking: bool = False,
) -> Grammar:
    """The grammar of answers that are JSON of a schema, or call one of `tools` in the format of `parser`.

    Raises `DataError` for an unsupported schema.
    """
    if find_spec("llguidance") is None:
        raise MissingExtraError("constrained decoding", "grammar")
    import llguidance

    forms, rules = list[str](), list[str]()
    if schema is not None:
        forms.append("answer")
        rules.append(f"answer: %json {_with_form(schema)}")
    if tools:
        if parser not in _CALLS:
            known = ", ".join(_CALLS)
            raise DataError(f"tool calls in the format of {parser!r} cannot be forced. Supported: {known}.")
        before, key, after = _CALLS[parser]
        forms.append(" ".join([*_literal(before), "call", *_literal(after)]))
        rules.append(f"call: %json {_with_form(_call_schema(tools, key))}")
    text = str(llguidance.LLMatcher.grammar_from_lark("\n".join([f"start: {' | '.join(forms)}", *rules])))
    if error := llguidance.LLMatcher.validate_grammar(text, _compiled(tokenizer)):
        raise DataError(f"the schema of the answer is not supported: {error.splitlines()[0]}")
    return Grammar(tokenizer, text, tuple(end for end in ends if isinstance(end, int)), after_thinking)


def _literal(text: str) -> list[str]:
    return [json.dumps(text)] if text else []


def _call_schema(tools: Sequence[Mapping[str, Any]], key: str) -> dict[str, Any]:
    calls = [
        {
            "type": "object",
            "properties": {"name": {"const": tool["function"]["name"]}, key: tool["function"]["parameters"]},
            "required": ["name", key],
            "additionalProperties": False,
        }
        for tool in tools
    ]
    return calls[0] if len(calls) == 1 else {"anyOf": calls}


def _with_form(schema: Mapping[str, Any]) -> str:
    return json.dumps({**_closed(schema), "x-guidance": _JSON_FORM})


def _closed(schema: Any) -> Any:
    """A schema whose objects allow only the listed properties, as their authors usually intend."""
    if isinstance(schema, list):
        return [_closed(item) for item in cast(list[Any], schema)]
    if not is_object(schema):
        return schema
    # Schemas below allOf describe partial objects; values of enum and const are not schemas.
    copied = ("allOf", "enum", "const", "default", "examples")
    closed = {key: value if key in copied else _closed(value) for key, value in schema.items()}
    if is_object(schema.get("properties")) and not {"additionalProperties", "patternProperties", "allOf"} & set(schema):
        closed["additionalProperties"] = False
    return closed


def _compiled(tokenizer: Any) -> Any:
    """llguidance's tokenizer; cached, because a large vocabulary takes a second."""
    if tokenizer not in _tokenizers:
        import llguidance

        if hasattr(tokenizer, "backend_tokenizer"):
            _tokenizers[tokenizer] = import_module("llguidance.hf").from_tokenizer(tokenizer)
        else:
            _tokenizers[tokenizer] = llguidance.LLTokenizer(llguidance.TokenizerWrapper(_Plain(tokenizer)))
    return _tokenizers[tokenizer]


class _Plain:
    """Adapter for a tokenizer without a fast implementation: its tokens as bytes."""

    def __init__(self, tokenizer: Any) -> None:
        special = set(tokenizer.all_special_ids)
        self._tokenizer = tokenizer
        self.eos_token_id, self.bos_token_id = tokenizer.eos_token_id, None
        self.special_token_ids = sorted(special)
        self.tokens = [
            bytes([token]) if token < 256 else str(tokenizer.decode([token])).encode()
            for token in range(len(tokenizer))
        ]  # fmt: skip

    def __call__(self, text: str) -> list[int]:
        if not isinstance(text, str):  # pyright: ignore[reportUnnecessaryIsInstance]  # llguidance probes with bytes
            raise TypeError("text")
        return self._tokenizer.encode(text)
