"""The claim of an experiment in one exact form, and its fingerprint, taken before the first step.

A claim that is written down after the scores are known proves nothing. The fingerprint goes into the journal when the
experiment starts; a conclusion about another claim than that one is `invalid`.

    normalised(config.metadata)          {"claim": ..., "metric": ..., "direction": ..., ...}, or None without a claim
    hypothesis_sha256(config.metadata)   64 hex digits, or None
"""

from __future__ import annotations

import json
from hashlib import sha256
from typing import Any

from ..config import Metadata, SuccessMetric
from ..redact import redact


def success_metric(metadata: Metadata) -> SuccessMetric | None:
    """The metric that decides which run is best, however it was written."""
    given = metadata.success_metric
    return SuccessMetric(name=given) if isinstance(given, str) else given


def normalised(metadata: Metadata) -> dict[str, Any] | None:
    """Claim, metric, direction, smallest effect, baseline and success metric; None where nothing is claimed.

    A sentence claims that the success metric gets better. So does a claim about a success metric that is to be
    minimised, whatever its `direction` says: more of it cannot be what success means.
    """
    given, success = metadata.hypothesis, success_metric(metadata)
    if given is None:
        return None
    better = {"max": "increase", "min": "decrease"}[success.mode] if success else "increase"
    success_dict = None if success is None else {"name": success.name, "mode": success.mode}
    if isinstance(given, str):
        metric = success.name if success else None
        own = {"claim": given, "metric": metric, "direction": better, "min_effect": 0.0, "baseline": None}
    else:
        metric = given.metric or (success.name if success else None)
        about_success = success is not None and metric == success.name
        direction = better if about_success and better == "decrease" else given.direction
        own = {
            "claim": given.claim,
            "metric": metric,
            "direction": direction,
            "min_effect": float(given.min_effect),
            "baseline": given.baseline,
        }
    return own | {"success_metric": success_dict}


def hypothesis_sha256(metadata: Metadata) -> str | None:
    """Fingerprint of everything that decides what would count as success; None where nothing is claimed."""
    found = normalised(metadata)
    if found is None:
        return None
    # As the record shows it: the conclusion is drawn from there.
    text = json.dumps(redact(found), sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return sha256(text.encode()).hexdigest()
