"""Real text that is on every machine: what people wrote into the docstrings of Python's library and of NumPy."""

from __future__ import annotations

import ast
import email
import random
import warnings
from collections.abc import Iterator
from pathlib import Path

import numpy


def library_texts(at_least: int = 10_000) -> list[str]:
    """Paragraphs from the standard library, each once."""
    root = Path(email.__file__).parents[1]
    texts: dict[str, None] = {}
    for path in sorted(root.rglob("*.py")):
        if "site-packages" not in path.parts and "test" not in path.parts:
            texts.update(dict.fromkeys(_paragraphs(path)))
        if len(texts) >= at_least:
            break
    return list(texts)


def numpy_texts() -> list[str]:
    """Paragraphs from NumPy, which shares none with the standard library but by chance."""
    texts: dict[str, None] = {}
    for path in sorted(Path(numpy.__file__).parent.rglob("*.py")):
        texts.update(dict.fromkeys(_paragraphs(path)))
    return list(texts)


def chinese_text(rng: random.Random, characters: int) -> str:
    """Characters in a random order: what matters here is that they have no spaces between them."""
    return "".join(chr(rng.randrange(0x4E00, 0x9000)) for _ in range(characters))


def _paragraphs(path: Path) -> Iterator[str]:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(path.read_text(encoding="utf-8"))
    except (SyntaxError, UnicodeDecodeError):
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.ClassDef | ast.AsyncFunctionDef | ast.Module):
            for paragraph in (ast.get_docstring(node) or "").split("\n\n"):
                if len(paragraph.split()) >= 3:
                    yield " ".join(paragraph.split())
