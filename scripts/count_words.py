"""Print the places of phrases that the writing guide replaces, and the words of each hand-written page.

Searched are identifiers, messages, docstrings, comments and pages in src and docs. Run it with `make words`; with
folders or files as arguments, only the places in them are printed. `KEPT` lists the places that stay, with reasons.
"""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
PHRASES = {
    r"\blooks? (?:at|of) (?:a|the) test": "interim analysis; evaluation count",
    r"\blen[dt]_noise|noise that was lent": "prior seed variance",
    r"\b_?worlds\b": "null simulations",
    r"\bluck\b": "variance; false positive rate",
    r"stands? in its training": "occurs in the training data",
    r"nothing stands against": "no issues found",
    r"\btaken up\b|\btake up\b": "resumed",
    r"\bbroken off\b": "aborted",
    r"\bput aside\b": "quarantined",
    r"\blet go\b|\blets go\b": "released, closed",
    r"\bgoes on\b|\bgo on\b": "continues",
    r"\bis told\b|\bare told\b": "is reported, gets",
    r"\bis said\b": "is reported",
    r"\btoo dear\b|\bdear\b": "over budget, too expensive",
    r"\bgets on\b": "status, progress",
    r"to be believed": "excluded",
    r"a person's word|wants a person": "human approval",
    r"\bMastery\b|note_rewards": "RewardSaturation, update",
    r"keep_house": "run_maintenance",
    r"\brehears": "dry run",
    r"NEVER_AGAIN": "NON_REPLAYABLE_VERIFIERS",
    r"sign of life": "heartbeat",
    r"HOPELESS": "FUTILITY_THRESHOLD",
    r"\bof its own\b": "own; or delete",
    r"\bbeside\b": "next to",
    r"\bnobody\b": "no one; or passive",
    r"\bwhoever\b": "anyone who",
    r"\bfor ever\b": "permanently",
    r"\bas seldom as\b": "as rarely as",
}
"""Pattern -> what to write instead."""
KEPT = {
    ("config/*.py", "beside"): "the keyword `beside` of `expand_matrix`: a base_run next to the matrix",
    ("scaffold/experiment.py", "beside"): "the same keyword",
    ("conclusion/*.py", "broken off"): "an outcome in `conclusion.json` of records",
    ("conclusion/question.py", "goes on"): "a text in `conclusion.json` of records",
}
"""(End of the path, phrase in lower case) -> why it stays."""
MOST_WORDS = 30_000
"""Aim for all hand-written pages together, without their code blocks."""


def find_phrases(path: Path) -> Iterator[tuple[int, str, str]]:
    """Line number, phrase and line of each place in a file."""
    for number, line in enumerate(path.read_text("utf-8").splitlines(), 1):
        for pattern in PHRASES:
            if found := re.search(pattern, line, re.IGNORECASE if pattern.islower() else 0):
                yield number, found[0], line.strip()


def list_files(place: Path) -> list[Path]:
    """The modules and pages of a folder, or the file itself."""
    return [place] if place.is_file() else sorted([*place.rglob("*.py"), *place.rglob("*.md")])


def reason_to_keep(path: Path, phrase: str) -> str:
    """Why a place stays as it is; empty if it should change."""
    return next((why for (end, kept), why in KEPT.items() if kept == phrase.lower() and path.match(end)), "")


def count_page_words() -> dict[str, int]:
    """The words of each hand-written page, without code blocks. A word has a letter or a digit: `|` is none."""
    pages = [path for path in list_files(ROOT / "docs") if "reference" not in path.parts]
    pages += [ROOT / name for name in ("README.md", "AGENTS.md", "CONTRIBUTING.md", "CHANGELOG.md")]
    texts = {path.relative_to(ROOT).as_posix(): path.read_text("utf-8") for path in pages}
    prose = {name: re.sub(r"(?ms)^ *```.*?^ *```", "", text) for name, text in texts.items()}
    return {name: len(re.findall(r"\S*\w\S*", text)) for name, text in prose.items()}


def main(arguments: list[str]) -> None:
    """Print the places, those that are kept with their reasons, and the words of each page."""
    places = [Path(name) for name in arguments] or [ROOT / "src" / "evsys_sdk", ROOT / "docs"]
    packages, kept = Counter[str](), Counter[str]()
    for path in (path for place in places for path in list_files(place)):
        for number, phrase, line in find_phrases(path):
            if why := reason_to_keep(path, phrase):
                kept[f"{phrase.lower()} in {path.name}: {why}"] += 1
                continue
            packages["/".join(path.resolve().relative_to(ROOT).parts[:3])] += 1
            print(f"{path}:{number}: {phrase}: {line}")
    for title, table in (("to change", packages), ("kept", kept)):
        print(f"\n{table.total():7,}  {title}")
        for name, count in table.most_common():
            print(f"{count:7,}  {name}")
    if not arguments:
        words = count_page_words()
        print(f"\n{sum(words.values()):7,}  words in hand-written pages (aim: {MOST_WORDS:,})")
        for name, count in sorted(words.items(), key=lambda item: -item[1]):
            print(f"{count:7,}  {name}")


if __name__ == "__main__":
    main(sys.argv[1:])
