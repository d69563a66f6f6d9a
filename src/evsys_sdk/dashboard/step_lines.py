"""Steps as lines of the mirror, quickly: training waits for this at every step.

Steps of one run differ in their numbers only. So what stands around the numbers is encoded, and looked through for
secrets, the first time; from then on numbers are put in. What is unusual is encoded as every other record is.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from typing import Any

from ..record.jsonable import encode_line
from ..record.run_files.metrics import metrics_record

_PROBE = 1_000_000
"""A number that is hidden where a name says that it is a password."""
_MOST_FORMS = 1000
_PLAIN = {float, int}
_LARGEST_SUM = 1e300


class StepLines:
    """Encodes the steps of a process; safe to use from several threads."""

    def __init__(self) -> None:
        self._forms: dict[tuple[str, ...], str] = {}

    def encode(self, run_id: str, step: int, metrics: Mapping[str, Any]) -> bytes:
        """One step as a line, the same that the encoder of all records gives."""
        names, values = (run_id, *metrics), (*metrics.values(),)
        form = self._forms.get(names)
        if form and _are_plain((step, *values)):
            return (form % (time.time(), step, *values)).encode()
        line = _encode(run_id, time.time(), step, metrics)
        if form is None:
            self._keep_form(run_id, tuple(metrics))
        return line

    def _keep_form(self, run_id: str, names: tuple[str, ...]) -> None:
        """Remember what stands around the numbers; "" where a number is not all that may stand between."""
        given = "".join(f", {_quote(name)}: %r" for name in names)
        form = f'{{"kind": "step", "run": {_quote(run_id)}, "at": %r, "line": {{"step": %r{given}}}}}\n'
        numbers = (float(_PROBE), *[_PROBE] * (1 + len(names)))
        same = _encode(run_id, float(_PROBE), _PROBE, dict.fromkeys(names, _PROBE)) == (form % numbers).encode()
        if len(self._forms) >= _MOST_FORMS:
            self._forms.clear()
        self._forms[run_id, *names] = form if same else ""


def _encode(run_id: str, at: float, step: int, metrics: Mapping[str, Any]) -> bytes:
    return encode_line({"kind": "step", "run": run_id, "at": at, "line": metrics_record(step, metrics)}, "a step")


def _quote(text: str) -> str:
    return json.dumps(text, ensure_ascii=False).replace("%", "%%")


def _are_plain(values: tuple[Any, ...]) -> bool:
    """Whether all are numbers that Python and JSON write alike: not NaN, infinite, NumPy's or a truth value."""
    try:
        return _PLAIN.issuperset(map(type, values)) and abs(sum(values)) < _LARGEST_SUM
    except OverflowError:  # a whole number that no float holds
        return False
