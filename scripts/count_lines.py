"""Print the code lines of each package of src, and the public class names that exist more than once.

A code line holds a token that is no comment and no docstring; a blank line holds none. Run it with `make lines`.
"""

from __future__ import annotations

import ast
import tokenize
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path

PACKAGE = Path(__file__).parents[1] / "src" / "evsys_sdk"
LAYOUT = {tokenize.NL, tokenize.INDENT, tokenize.DEDENT, tokenize.ENCODING, tokenize.ENDMARKER, tokenize.COMMENT}


def count_code_lines(path: Path) -> int:
    """The code lines of a module."""
    return len({line for token in _code_tokens(path) for line in _lines_of(token)})


def repeated_classes(paths: list[Path]) -> dict[str, list[str]]:
    """Public top-level class names that several modules define, with these modules."""
    places: defaultdict[str, list[str]] = defaultdict(list)
    for path in paths:
        for node in ast.parse(path.read_bytes()).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places[node.name].append(path.relative_to(PACKAGE).as_posix())
    return {name: found for name, found in sorted(places.items()) if len(found) > 1}


def _code_tokens(path: Path) -> Iterator[tokenize.TokenInfo]:
    """The tokens of each statement that is more than a string."""
    statement: list[tokenize.TokenInfo] = []
    with tokenize.open(path) as file:
        for token in tokenize.generate_tokens(file.readline):
            if token.type == tokenize.NEWLINE:
                if any(part.type != tokenize.STRING for part in statement):
                    yield from statement
                statement = []
            elif token.type not in LAYOUT:
                statement.append(token)


def _lines_of(token: tokenize.TokenInfo) -> Iterator[int]:
    """The lines of a token; blank lines within a string are no code."""
    for offset, text in enumerate(token.string.split("\n")):
        if text.strip() or offset == 0:
            yield token.start[0] + offset


def main() -> None:
    """Print both tables."""
    paths = sorted(PACKAGE.rglob("*.py"))
    lines = Counter[str]()
    for path in paths:
        first, *rest = path.relative_to(PACKAGE).parts
        lines[f"{first}/" if rest else "*.py"] += count_code_lines(path)
    for package, count in lines.most_common():
        print(f"{count:7,}  {package}")
    print(f"{lines.total():7,}  total")
    repeated = repeated_classes(paths)
    print(f"\n{len(repeated)} public class names exist more than once:")
    for name, places in repeated.items():
        print(f"  {name}: {', '.join(places)}")


if __name__ == "__main__":
    main()
