"""Print where phrases stand that the writing guide replaces, by phrase and package, in src and docs.

A phrase is looked for in identifiers, messages, docstrings, comments and pages. Run it with `make words`; with a folder
or file as argument, every place in it is printed with its line.
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


def find_phrases(path: Path) -> Iterator[tuple[int, str, str]]:
    """Line number, phrase and line of each place in a file."""
    for number, line in enumerate(path.read_text("utf-8").splitlines(), 1):
        for pattern in PHRASES:
            if found := re.search(pattern, line, re.IGNORECASE if pattern.islower() else 0):
                yield number, found[0], line.strip()


def list_files(place: Path) -> list[Path]:
    """The modules and pages of a folder, or the file itself."""
    return [place] if place.is_file() else sorted([*place.rglob("*.py"), *place.rglob("*.md")])


def main(arguments: list[str]) -> None:
    """Print the places in what the arguments name, or counts of everything."""
    for name in arguments:
        for path in list_files(Path(name)):
            for number, phrase, line in find_phrases(path):
                print(f"{path}:{number}: {phrase}: {line}")
    if arguments:
        return
    counts, packages = Counter[str](), Counter[str]()
    for place in (ROOT / "src" / "evsys_sdk", ROOT / "docs"):
        for path in list_files(place):
            first, *rest = path.relative_to(place).parts
            for _, phrase, _ in find_phrases(path):
                counts[phrase.lower()] += 1
                packages[f"{place.name}/{first}" if rest else f"{place.name}/*"] += 1
    for table in (counts, packages):
        for name, count in table.most_common():
            print(f"{count:7,}  {name}")
        print(f"{table.total():7,}  total\n")


if __name__ == "__main__":
    main(sys.argv[1:])
