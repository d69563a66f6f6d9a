"""The Markdown of this repository, as far as its tests need it: fenced blocks, headings and links.

What a fence says about its content:

    yaml                  a complete config, which passes deep validation
    yaml at run.data      what may stand at that place of a config; `at .` is its top level
    yaml invalid          a complete config that is refused; a `text error` fence after it holds the message
    yaml fragment         YAML that is only parsed
    bash                  commands that succeed, or exit as `# exits 1` at their end says
    console               commands after `$ `, each followed by what it prints; `...` stands for anything
    python                code that compiles
    python runnable       code that runs
    ... file=NAME         is saved under that name before the commands below it run

A complete config without a file name is `config.yaml`; Python that registers transforms is `my_transforms.py`, and so
on for the other kinds.
"""

from __future__ import annotations

import doctest
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from evsys_sdk.config.yaml_text import read_yaml
from evsys_sdk.registry import REGISTRIES

ROOT = Path(__file__).parents[2]
SKIPPED = {"node_modules", "build", "dist", "outputs"}

FENCE = re.compile(r"^(?P<indent> *)```(?P<info>[^`\n]*)\n(?P<text>.*?)^(?P=indent)```\s*$", re.MULTILINE | re.DOTALL)
HEADING = re.compile(r"^#{1,6} +(?P<title>.+?) *$", re.MULTILINE)
LINK = re.compile(r"(?<!!)\[(?:[^\[\]]|\[[^\]]*\])*\]\((?P<target>[^()\s]+)\)")


@dataclass(frozen=True, slots=True)
class Fence:
    """One fenced block."""

    page: Path
    line: int
    language: str
    words: tuple[str, ...]
    """What follows the language."""
    text: str

    @property
    def where(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"

    @property
    def file_name(self) -> str | None:
        """Under which name it is saved when its page is run."""
        named = next((word.removeprefix("file=") for word in self.words if word.startswith("file=")), None)
        if self.words:
            return named
        if self.language == "yaml":
            return "config.yaml" if is_complete(self) else None
        if self.language == "python":
            for registry in REGISTRIES.values():
                if f"@{registry.decorator}(" in self.text:
                    return f"my_{registry.plural}.py"
        return None


def pages() -> list[Path]:
    """Every Markdown page of the repository."""
    paths = [path for path in ROOT.rglob("*.md") if not _is_hidden(path)]
    assert paths
    return sorted(paths)


def fences(page: Path) -> list[Fence]:
    """All fenced blocks of a page."""
    text = page.read_text("utf-8")
    blocks: list[Fence] = []
    for match in FENCE.finditer(text):
        language, *words = match["info"].split() or [""]
        lines = [line.removeprefix(match["indent"]) for line in match["text"].splitlines(keepends=True)]
        blocks.append(Fence(page, text.count("\n", 0, match.start()) + 1, language, tuple(words), "".join(lines)))
    return blocks


def prose(page: Path) -> str:
    """The page without its fenced blocks."""
    return FENCE.sub("", page.read_text("utf-8"))


def anchors(page: Path) -> set[str]:
    """What `#...` may name on a page, as GitHub makes it from the headings."""
    return set(anchor_names(page.read_text("utf-8")))


def anchor_names(text: str) -> list[str]:
    """The anchors of all headings of a text, in order."""
    names: list[str] = []
    for match in HEADING.finditer(FENCE.sub("", text)):
        title = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", match["title"]).lower()
        slug = re.sub(r"[^\w\- ]", "", title).replace(" ", "-")
        number = next(n for n in range(len(names) + 1) if (f"{slug}-{n}" if n else slug) not in names)
        names.append(f"{slug}-{number}" if number else slug)
    return names


def read_title(text: str) -> str:
    """The first heading of a text."""
    match = HEADING.search(text)
    assert match is not None
    return match["title"].replace("`", "")


def summarise(text: str) -> str:
    """The first sentence of a text, without its links."""
    paragraphs = re.split(r"\n\s*\n", re.sub(r"<!--.*?-->", "", FENCE.sub("", text), flags=re.DOTALL))
    prose = next(part for part in paragraphs if re.match(r"\s*[\w`*\[\"]", part))
    line = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", " ".join(prose.split()))
    return re.split(r"(?<=[.!?:]) ", line)[0].rstrip(":")


def links(page: Path) -> Iterator[str]:
    """The targets of all links of a page."""
    without_code = re.sub(r"`[^`\n]*`", "", prose(page))
    return (match["target"] for match in LINK.finditer(without_code))


def is_complete(fence: Fence) -> bool:
    """Whether a YAML block is a complete config."""
    data = read_yaml(fence.text).data
    return isinstance(data, dict) and "name" in data and bool({"run", "runs", "matrix", "base_run"} & set(data))


def looks_like(shown: str, real: str) -> bool:
    """Whether a page shows what really appears; `...` stands for anything, and amounts of white space do not count."""
    flags = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    return doctest.OutputChecker().check_output(shown.strip(), real.strip(), flags)


def _is_hidden(path: Path) -> bool:
    parts = path.relative_to(ROOT).parts
    return any(part.startswith(".") or part in SKIPPED for part in parts)
