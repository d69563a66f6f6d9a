"""The model card beside shipped weights: what they are, what was concluded of them, on which rows, and who checked."""

from __future__ import annotations

from ..experiment.audit.audit import AuditReport
from ..record.values import number, text
from .source import Source, describe_scores


def write_card(source: Source, audit: AuditReport, *, kind: str, library: str) -> str:
    """The card as Markdown with the front matter that model hubs read."""
    conclusion = source.detail.conclusion
    head = [
        "---",
        f"base_model: {source.base_model}",
        f"library_name: {library}",
        "tags: [evsys]",
        "---",
        "",
        f"# {source.detail.summary.name}: {source.arm.run}",
        "",
        f"Weights of the arm `{source.arm.name}` of the experiment `{source.experiment}`, checkpoint "
        f"`{source.checkpoint}`, trained from `{source.base_model}` and shipped as `{kind}`.",
        "",
    ]
    told = [
        "## Conclusion",
        "",
        text(conclusion.get("summary")) or "The experiment has no conclusion.",
        "",
        *(f"- {line}" for line in describe_scores(source)),
        "",
    ]
    return "\n".join([*head, *told, *_lineage(source), *_integrity(source, audit)])


def _lineage(source: Source) -> list[str]:
    rows = [
        f"| {text(one.get('source')) or '?'} | {number(one.get('rows')) or 0:g} | `{text(one.get('sha256'))[:16]}` |"
        for one in source.arm.datasets
    ]
    body = ["| rows from | rows | sha256 |", "|---|---|---|", *rows] if rows else ["The record does not name them."]
    return ["## Data", "", *body, ""]


def _integrity(source: Source, audit: AuditReport) -> list[str]:
    flagged = ", ".join(check.name for check in audit.flags)
    unchecked = ", ".join(check.name for check in audit.checks if check.state == "unchecked")
    mark = f"flagged: {flagged}" if flagged else "nothing stands against the record"
    return [
        "## Integrity",
        "",
        f"- Audit: {mark}{f'; could not be checked: {unchecked}' if unchecked else ''}.",
        f"- sha256 of the weights as trained: `{source.sha256}`.",
        f"- Conversations were rendered with: {source.renderer or 'not recorded'}. A loader with another chat template "
        "asks the model something that it was not trained on.",
        "",
    ]
