"""Conclusions on disk: `conclusion.json` for programs, `conclusion.md` for people."""

from __future__ import annotations

import json
from pathlib import Path

from ...errors import DataError
from ...files import write_text
from .markdown import as_markdown
from .model import Conclusion
from .reading import read_evidence
from .verdict import conclude_from

CONCLUSION_FILE = "conclusion.json"
CONCLUSION_PAGE = "conclusion.md"


def conclude(path: Path) -> Conclusion:
    """What the record in the folder of an experiment shows; writes nothing."""
    return conclude_from(read_evidence(path))


def write_conclusion(path: Path) -> Conclusion:
    """Conclude, and put both files beside the record, each whole or not at all."""
    conclusion = conclude(path)
    write_text(path / CONCLUSION_PAGE, as_markdown(conclusion))
    write_text(path / CONCLUSION_FILE, conclusion.to_json())  # last: what programs look for
    return conclusion


def stored_conclusion(path: Path) -> Conclusion | None:
    """The conclusion that was written, if there is one."""
    file = path / CONCLUSION_FILE
    if not file.is_file():
        return None
    try:
        return Conclusion.from_dict(json.loads(file.read_text(encoding="utf-8")))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise DataError(
            f"{file}: this is not a conclusion ({type(error).__name__}: {error}). "
            "Remove it and run `evsys conclude` to write it anew."
        ) from None
