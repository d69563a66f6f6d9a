"""Pictures; they need the extra `plot`."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from evsys_sdk import DataError
from evsys_sdk.errors import MissingExtraError
from evsys_sdk.history.detail import read_detail
from evsys_sdk.history.views.compare import compare_experiments
from evsys_sdk.history.views.plots import plot_comparison, plot_experiment

from .recorded import write_experiment


def test_without_the_extra_the_error_says_how_to_install_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    path = write_experiment(tmp_path, "one")
    with pytest.raises(MissingExtraError, match=r"--plot needs the extra 'plot'.*pip install 'evsys-sdk\[plot\]'"):
        plot_experiment(read_detail(path), str(tmp_path / "one.png"))
    assert not (tmp_path / "one.png").exists()


def test_other_formats_are_refused_before_anything_is_imported(tmp_path: Path) -> None:
    path = write_experiment(tmp_path, "one")
    with pytest.raises(DataError, match=r"must end in \.png or \.svg \(got '\.gif'\)"):
        plot_experiment(read_detail(path), "one.gif")


@pytest.mark.parametrize("name", ["one.png", "deep/one.svg"])
def test_an_experiment_is_drawn(tmp_path: Path, name: str) -> None:
    pytest.importorskip("matplotlib")
    path = write_experiment(tmp_path, "one")
    plot_experiment(read_detail(path), str(tmp_path / name))
    content = (tmp_path / name).read_bytes()
    assert content.startswith(b"\x89PNG") if name.endswith("png") else b"<svg" in content


def test_the_same_record_is_the_same_picture(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    details = [read_detail(write_experiment(tmp_path, name)) for name in ("one", "two")]
    for name in ("a.svg", "b.svg"):
        plot_comparison(compare_experiments(details), str(tmp_path / name))
    assert (tmp_path / "a.svg").read_bytes() == (tmp_path / "b.svg").read_bytes()


def test_nothing_to_draw_is_said(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    path = write_experiment(tmp_path, "one", runs={"only": 0.1}, status=None, verdict=None)
    with pytest.raises(DataError, match="neither curves nor scores"):
        plot_experiment(read_detail(path), str(tmp_path / "one.png"))
