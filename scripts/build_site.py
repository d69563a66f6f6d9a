"""Builds the documentation site: HTML, a Markdown twin of every page, llms.txt and llms-full.txt.

    python -m scripts.build_site             everything, into build/site; needs zensical (make site)
    python -m scripts.build_site --pages     only what zensical is given, into build/pages

The pages in docs/ are written to be read in the repository: links lead to examples and sources, anchors are GitHub's,
and fences say how they are tested. What is staged for the site has the same content with links that stay inside of it,
headings that carry their anchors, and fences without the words for tests. A twin has the address of its page, but ends
in `.md`.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html.parser import HTMLParser
from pathlib import Path
from typing import Any, cast
from urllib.parse import unquote, urlsplit

import yaml

from tests.docs.markdown import FENCE, HEADING, LINK, ROOT, anchor_names, read_title, summarise

DOCS = ROOT / "docs"
CONFIG = ROOT / "mkdocs.yml"
BUILD = ROOT / "build"
_LINK_OR_CODE = re.compile("`[^`\\n]*`|" + LINK.pattern.replace("(?<!!)", "!?"))


@dataclass(frozen=True, slots=True)
class Page:
    """One page of the site: where it is in the repository, and its address in the site."""

    source: Path
    place: str
    section: str = ""

    @property
    def text(self) -> str:
        return self.source.read_text("utf-8")


def place_of(file: Path) -> str:
    """Where a file of the repository is in the site."""
    if file.is_relative_to(DOCS):
        return file.relative_to(DOCS).as_posix()
    if file.name == "README.md" and file.parent.parent == ROOT / "examples":
        return f"examples/{file.parent.name}.md"
    return f"repository/{file.relative_to(ROOT).as_posix()}"


def source_of(place: str) -> Path:
    """The file of the repository that a place of the navigation stands for."""
    if place.startswith("examples/"):
        return ROOT / "examples" / Path(place).stem / "README.md"
    return DOCS / place


def read_config() -> dict[str, Any]:
    """mkdocs.yml, as data."""
    return cast("dict[str, Any]", yaml.safe_load(CONFIG.read_text("utf-8")))


def pages_in_order(nav: Sequence[Any], section: str = "") -> Iterator[Page]:
    """The pages of the navigation, each with the outermost heading it stands under."""
    for entry in nav:
        if isinstance(entry, str):
            yield Page(source_of(entry), entry, section)
            continue
        [(title, below)] = cast("dict[str, Any]", entry).items()
        if isinstance(below, str):
            yield Page(source_of(below), below, section or title)
        else:
            yield from pages_in_order(below, section or title)


def stage(folder: Path) -> tuple[list[Page], dict[str, str]]:
    """Write the pages and what they link to, ready for the generator; returns the pages and their twins by place."""
    shutil.rmtree(folder, ignore_errors=True)
    listed = list(pages_in_order(read_config()["nav"]))
    todo, done, twins = [page.source for page in listed], set[Path](), dict[str, str]()
    while todo:
        file = todo.pop(0)
        if file in done:
            continue
        done.add(file)
        target = folder / place_of(file)
        target.parent.mkdir(parents=True, exist_ok=True)
        if file.suffix != ".md":
            shutil.copyfile(file, target)
            continue
        text, linked = move_links(file)
        todo += linked
        twins[place_of(file)] = text
        target.write_text(for_generator(text), "utf-8")
    return listed, twins


def move_links(file: Path) -> tuple[str, list[Path]]:
    """A page with its links as they are in the site, and the files that these lead to."""
    linked: list[Path] = []
    depth = place_of(file).count("/")

    def move(match: re.Match[str]) -> str:
        path, hash_, anchor = (match["target"] or "").partition("#")
        if not path or re.match(r"[a-z]+:", path):
            return match[0]  # code, a place on this page, or another site
        target = (file.parent / path).resolve()
        if target.is_dir():
            return match[0].rpartition("](")[0].removeprefix("[")  # a site has no folders to look into
        linked.append(target)
        return match[0].replace(match["target"], "../" * depth + place_of(target) + hash_ + anchor)

    return "".join(part if is_code else _LINK_OR_CODE.sub(move, part) for part, is_code in _parts(file)), linked


def _parts(file: Path) -> Iterator[tuple[str, bool]]:
    """The text of a page in pieces, and whether each is a fenced block."""
    text, at = file.read_text("utf-8"), 0
    for fence in FENCE.finditer(text):
        yield text[at : fence.start()], False
        yield fence[0], True
        at = fence.end()
    yield text[at:], False


def for_generator(text: str) -> str:
    """The page with anchors at its headings and fences that only say their language and file."""
    names = iter(anchor_names(text))

    def mark(match: re.Match[str]) -> str:
        return f"{match[0].rstrip()} {{ #{next(names)} }}"

    def plain(match: re.Match[str]) -> str:
        language, *words = match["info"].split() or ["text"]
        file = next((word.removeprefix("file=") for word in words if word.startswith("file=")), None)
        title = f' title="{file}"' if file else ""
        return f"{match['indent']}```{language}{title}\n{match['text']}{match['indent']}```\n"

    kept: list[str] = []
    at = 0
    for fence in FENCE.finditer(text):
        kept += [HEADING.sub(mark, text[at : fence.start()]), plain(fence)]
        at = fence.end()
    return "".join([*kept, HEADING.sub(mark, text[at:])])


def write_for_models(pages: Sequence[Page], twins: dict[str, str], folder: Path) -> None:
    """The twins, an index of them with a sentence each, and all of them in one file."""
    config = read_config()
    index, whole = [f"# {config['site_name']}\n\n> {config['site_description']}"], list[str]()
    section = ""
    for page in pages:
        if page.section != section:
            section = page.section
            index.append(f"\n## {section}\n")
        index.append(f"- [{read_title(page.text)}]({page.place}): {summarise(page.text)}")
        whole.append(f"<!-- {page.place} -->\n\n{twins[page.place].strip()}\n")
    (folder / "llms.txt").write_text("\n".join(index) + "\n", "utf-8")
    (folder / "llms-full.txt").write_text("\n".join(whole), "utf-8")
    for place, text in twins.items():
        (folder / place).parent.mkdir(parents=True, exist_ok=True)
        (folder / place).write_text(text, "utf-8")


class Addresses(HTMLParser):
    """What a page of HTML links to, and what may be linked to in it."""

    def __init__(self) -> None:
        super().__init__()
        self.targets: list[str] = []
        self.names: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self.names |= {value for key in ("id", "name") if (value := given.get(key))}
        if tag != "link" or given.get("rel") != "canonical":
            self.targets += [value for key in ("href", "src") if (value := given.get(key))]


def find_broken(folder: Path) -> list[str]:
    """Every link of the built pages that leads to no file or no anchor, and everything fetched from elsewhere."""
    read: dict[Path, Addresses] = {}
    for file in sorted(folder.rglob("*.html")):
        read[file] = Addresses()
        read[file].feed(file.read_text("utf-8"))
    broken: list[str] = []
    for file, found in read.items():
        for target in found.targets:
            parts = urlsplit(target)
            if parts.scheme or target.startswith(("//", "#__")):
                continue
            start = folder if parts.path.startswith("/") else file.parent  # only the page for what is not there does
            path = (start / unquote(parts.path).lstrip("/")).resolve() if parts.path else file
            path = path / "index.html" if path.is_dir() else path
            if not path.exists() or (parts.fragment and path in read and parts.fragment not in read[path].names):
                broken.append(f"{file.relative_to(folder)}: {target}")
    return broken


def main(arguments: Sequence[str]) -> int:
    """Build and check; returns the exit code."""
    pages, twins = stage(BUILD / "pages")
    if arguments == ["--pages"]:
        return 0
    config = BUILD / "mkdocs.yml"
    changed = {**read_config(), "docs_dir": "pages", "site_dir": "site"}
    config.write_text(yaml.safe_dump(changed, sort_keys=False), "utf-8")
    shutil.rmtree(BUILD / "site", ignore_errors=True)
    built = subprocess.run([sys.executable, "-m", "zensical", "build", "-f", str(config)], check=False)
    if built.returncode:
        return built.returncode
    write_for_models(pages, twins, BUILD / "site")
    broken = find_broken(BUILD / "site")
    for line in broken:
        print(line, file=sys.stderr)
    print(f"{BUILD / 'site' / 'index.html'}: {len(twins)} pages, {len(broken)} broken links")
    return 1 if broken else 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
