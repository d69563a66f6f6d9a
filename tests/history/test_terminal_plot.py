"""Curves made of characters."""

from __future__ import annotations

import math

import pytest

from evsys_sdk.history.views.curves import draw

FALLING = [(float(step), 1.0 / step) for step in range(1, 50)]
RISING = [(float(step), step / 50) for step in range(1, 50)]


@pytest.mark.parametrize("width", [40, 80, 140, 300])
@pytest.mark.parametrize("unicode", [True, False])
def test_a_picture_is_never_wider_than_the_terminal(width: int, unicode: bool) -> None:
    picture = draw([("a", FALLING), ("b", RISING)], title="loss", width=width, unicode=unicode)
    assert max(len(line) for line in picture.splitlines()) <= width
    assert unicode or picture.isascii()


def test_a_falling_curve_falls() -> None:
    rows = draw([("a", FALLING)], title="loss", width=60, unicode=False).splitlines()[1:-2]
    columns = [row.index("*") for row in rows if "*" in row]
    assert columns == sorted(columns)


@pytest.mark.parametrize("unicode", [True, False])
def test_two_curves_have_marks_of_their_own_also_where_they_are_the_same(unicode: bool) -> None:
    picture = draw([("first", FALLING), ("second", FALLING)], title="loss", width=80, unicode=unicode)
    head, body = picture.split("\n", 1)
    for label, mark in zip(("first", "second"), "●○" if unicode else "*o", strict=True):
        assert f"{mark} {label}" in head
        assert body.count(mark) > 10


def test_one_curve_is_drawn_in_braille() -> None:
    picture = draw([("a", FALLING)], title="loss", width=60, unicode=True)
    assert any(0x2800 < ord(char) < 0x2900 for char in picture)


def test_a_flat_curve_and_a_single_point_have_a_frame() -> None:
    assert draw([("a", [(1.0, 5.0), (2.0, 5.0)])], title="loss", width=60, unicode=False).count("*") > 10
    assert "*" in draw([("a", [(3.0, 0.0)])], title="loss", width=60, unicode=False)


def test_nothing_to_draw_is_nothing() -> None:
    assert draw([("a", [])], title="loss", width=60) == ""


def test_axes_name_the_ends() -> None:
    lines = draw([("a", FALLING)], title="loss", width=60, unicode=False).splitlines()
    assert lines[0].startswith("loss")
    assert lines[1].strip().startswith("1|")
    assert lines[-1].split() == ["1", "step", "49"]
    assert math.isclose(float(lines[-3].split("|")[0]), 1 / 49, rel_tol=1e-3)
