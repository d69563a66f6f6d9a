"""Tables for a terminal."""

from __future__ import annotations

from evsys_sdk.history.text import fit_table


def test_long_names_that_differ_in_the_middle_stay_different() -> None:
    names = [f"sft__learning_rate{rate}__lr_schedulecosine" for rate in ("0p003", "0p001")]
    _, _, *rows = fit_table(("run", "steps"), [[name, "30"] for name in names], width=30, flexible=(0,)).splitlines()
    assert [row.split()[0] for row in rows] == ["…3__lr_schedulecosine", "…1__lr_schedulecosine"]
    assert all(len(row) <= 30 for row in rows)
