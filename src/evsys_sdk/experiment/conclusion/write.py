"""Read and write conclusions: `conclusion.json` for programs, `conclusion.md` for readers."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path

from ...errors import DataError
from ...record import folders
from ...record.events import Kind
from ...record.evidence import hash_conclusion_page
from ...record.layout import ExperimentFiles
from ...record.reader import ExperimentRecord
from ..audit.audit import AuditReport
from .markdown import as_markdown
from .model import RULES, Conclusion
from .reading import read_evidence
from .verdict import conclude_from

_CHANGES_NOTHING = (Kind.ENDED, Kind.RESUMED, Kind.ARM_RECALLED, Kind.NOTE)
"""Events that do not affect the conclusion."""


def conclude(path: Path, audit: AuditReport | None = None, record: ExperimentRecord | None = None) -> Conclusion:
    """Draw the conclusion of the experiment in a folder; write nothing."""
    return conclude_from(read_evidence(path, audit, record))


def write_conclusion(
    path: Path, audit: AuditReport | None = None, record: ExperimentRecord | None = None
) -> Conclusion:
    """Draw the conclusion and write both files to the folder, each atomically."""
    conclusion = conclude(path, audit, record)
    folders.write_conclusion(path, page=as_markdown(conclusion), content=conclusion.to_json())
    return conclusion


def read_stored_conclusion(path: Path) -> Conclusion | None:
    """Read the stored conclusion; None if there is none."""
    text = folders.read_conclusion(path)
    if text is None:
        return None
    try:
        return Conclusion.from_dict(json.loads(text))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise DataError(
            f"{ExperimentFiles(path).conclusion}: this is not a conclusion ({type(error).__name__}: {error}). "
            "Remove it and run `evsys conclude` to write it anew."
        ) from None


def find_standing_conclusion(record: ExperimentRecord) -> Conclusion | None:
    """The conclusion on disk, if it matches the journal and no later event could change it."""
    last = [event for event in record.events if event.kind not in _CHANGES_NOTHING or event.get("changed")][-1:]
    # After an audit with flags, the flagged problem may be fixed by now.
    if not last or last[0].kind != Kind.CONCLUDED or any(event.kind == Kind.AUDITED for event in record.events):
        return None
    with suppress(DataError):  # a damaged file is written again
        stored = read_stored_conclusion(record.folder)
        stated = last[0].text("sha256"), last[0].get("page"), RULES
        if stored and (stored.sha256, hash_conclusion_page(record.folder), stored.schema_version) == stated:
            return stored
    return None
