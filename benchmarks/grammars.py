"""Which grammar library: llguidance beside xgrammar, on the same schemas, texts and tokenizer. Needs both packages.

python benchmarks/grammars.py FOLDER_OF_A_TOKENIZER
"""

import json
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

from measure import machine

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "age": {"type": "integer", "minimum": 0, "maximum": 130},
        "email": {"type": "string", "pattern": "^[a-z]+@[a-z]+\\.org$"},
        "tags": {"type": "array", "items": {"enum": ["a", "b", "c"]}, "maxItems": 4},
    },
    "required": ["name", "age", "email", "tags"],
    "additionalProperties": False,
}
WIDE = {
    "type": "object",
    "properties": {f"field_{n}": {"anyOf": [PERSON, {"type": "null"}]} for n in range(40)},
    "additionalProperties": False,
}
ONE = {"name": "Ada Lovelace", "age": 36, "email": "ada@example.org", "tags": ["a", "b"]}
CASES = {
    "any object": ({"type": "object"}, {"key": [1, 2, {"a": "some words of text"}], "b": None}),
    "person": (PERSON, ONE),
    "40 optional persons": (WIDE, {f"field_{n}": ONE for n in range(0, 40, 8)}),
}


def main(folder: str) -> None:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    print(machine())
    print(f"vocabulary of {len(tokenizer)} tokens")
    for name, open_library in {"llguidance": use_llguidance, "xgrammar": use_xgrammar}.items():
        started = time.perf_counter()
        compile_schema = open_library(tokenizer)
        print(f"{name:12} tokenizer prepared in {time.perf_counter() - started:.2f} s")
        for case, (schema, value) in CASES.items():
            text = json.dumps(value)
            started = time.perf_counter()
            step = compile_schema(schema)
            compiled = time.perf_counter() - started
            times: list[float] = []
            for token in tokenizer.encode(text, add_special_tokens=False):
                started = time.perf_counter()
                step(token)
                times.append(time.perf_counter() - started)
            first, median, worst = compiled * 1e3, statistics.median(times) * 1e6, max(times) * 1e3
            print(f"  {case:20} first {first:8.1f} ms   mask and step {median:7.0f} us median, {worst:7.2f} ms longest")


def use_llguidance(tokenizer: Any) -> Callable[[Any], Callable[[int], None]]:
    import llguidance.hf

    prepared = llguidance.hf.from_tokenizer(tokenizer)

    def compile_schema(schema: Any) -> Callable[[int], None]:
        form = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
        text = llguidance.LLMatcher.grammar_from_json_schema(json.dumps({**schema, "x-guidance": form}))
        matcher = llguidance.LLMatcher(prepared, text)
        matcher.compute_bitmask()

        def step(token: int) -> None:
            matcher.compute_bitmask()
            assert matcher.consume_token(token), matcher.get_error()

        return step

    return compile_schema


def use_xgrammar(tokenizer: Any) -> Callable[[Any], Callable[[int], None]]:
    import xgrammar

    info = xgrammar.TokenizerInfo.from_huggingface(tokenizer)
    compiler = xgrammar.GrammarCompiler(info, max_threads=1, cache_enabled=False)
    mask = xgrammar.allocate_token_bitmask(1, info.vocab_size)

    def compile_schema(schema: Any) -> Callable[[int], None]:
        compiled = compiler.compile_json_schema(json.dumps(schema), any_whitespace=False)
        matcher = xgrammar.GrammarMatcher(compiled)
        matcher.fill_next_token_bitmask(mask)

        def step(token: int) -> None:
            matcher.fill_next_token_bitmask(mask)
            assert matcher.accept_token(token)

        return step

    return compile_schema


if __name__ == "__main__":
    main(sys.argv[1])
