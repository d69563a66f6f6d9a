"""Conclusions on disk: `conclusion.json` for programs, `conclusion.md` for people."""

from __future__ import annotations

import json
from pathlib import Path

from ...errors import DataError
from ...record import folders
from ...record.layout import ExperimentFiles
from ...record.reader import ExperimentRecord
from ..audit.audit import AuditReport
from .markdown import as_markdown
from .model import Conclusion
from .reading import read_evidence
from .verdict import conclude_from


def conclude(path: Path, audit: AuditReport | None = None, record: ExperimentRecord | None = None) -> Conclusion:
    """What the record in the folder of an experiment shows; writes nothing."""
    return conclude_from(read_evidence(path, audit, record))


def write_conclusion(
    path: Path, audit: AuditReport | None = None, record: ExperimentRecord | None = None
) -> Conclusion:
    """Conclude, and put both files beside the record, each whole or not at all."""
    conclusion = conclude(path, audit, record)
    folders.write_conclusion(path, page=as_markdown(conclusion), content=conclusion.to_json())
    return conclusion


def read_stored_conclusion(path: Path) -> Conclusion | None:
    """The conclusion that was written, if there is one."""
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
