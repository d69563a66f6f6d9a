"""What commands print on a terminal fits it; what goes to a file or another program stays as it is."""

from __future__ import annotations

import io
import sys

import click
import pytest

from evsys_sdk.cli.output import emit, fit_table, group_sentences, hang, table

SENTENCE = "examples/compare.yaml: OK. Experiment 'passes' has 2 runs: two_passes, three_passes"
PAGE = f"{SENTENCE}\n| run | mean |\n| --- | --- |\n| a \\| b | 0.5 |\n  indented: {SENTENCE}"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def open_terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """Replaces stdout inside a test: between its phases pytest sets it back."""
    terminal = Terminal()
    monkeypatch.setenv("COLUMNS", "40")
    monkeypatch.setattr(sys, "stdout", terminal)
    return terminal


@pytest.mark.parametrize("printed", [True, False])
def test_a_page_breaks_between_words_and_its_tables_are_aligned(printed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = open_terminal(monkeypatch)
    emit({}, False, lambda: click.echo(PAGE) if printed else PAGE)
    assert terminal.getvalue() == (
        "examples/compare.yaml: OK. Experiment\n'passes' has 2 runs: two_passes,\nthree_passes\n"
        "run    mean\n-----  ----\na | b  0.5\n"
        f"  indented: {SENTENCE}\n"
    )


def test_json_on_a_terminal_is_not_broken(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = open_terminal(monkeypatch)
    emit({"said": SENTENCE}, True, lambda: None)
    assert SENTENCE in terminal.getvalue()


def test_a_table_on_a_terminal_keeps_names_and_ids_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    open_terminal(monkeypatch)
    rows = [("routing", "routing-v1-train-8ce0", "a long remark about it")]
    assert table(("name", "id", "remark"), rows).splitlines()[2] == "routing  routing-v1-train-8ce0  a lon..."


def test_what_no_terminal_shows_stays_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    emit({}, False, lambda: PAGE)
    assert capsys.readouterr().out == f"{PAGE}\n"


def test_names_that_do_not_fit_keep_their_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    open_terminal(monkeypatch)
    names = [f"sft__learning_rate0p0002__seed{seed}" for seed in (42, 43)]
    shown = fit_table(("arm", "state", "left"), [(name, "completed", "3 minutes") for name in names]).splitlines()
    assert max(map(len, shown)) <= 40
    assert [line.split()[0][-6:] for line in shown[2:]] == ["seed42", "seed43"]


def test_a_table_of_ids_alone_is_no_wider_than_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    open_terminal(monkeypatch)
    rows = [("routing-of-tickets", "routing-v1-train-8ce04d51aa", "v1", "120", "7.5 KB")]
    assert max(map(len, table(("name", "id", "version", "rows", "size"), rows).splitlines())) <= 40


def test_coloured_lines_below_a_head_break_once(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = open_terminal(monkeypatch)
    reason = "not available: needs the extra 'local'. Install it with: pip install 'evsys-sdk[local]'"
    emit({}, False, lambda: click.secho(hang(f"  {click.style('local', bold=True)}  ", reason), fg="yellow"))
    lines = click.unstyle(terminal.getvalue()).rstrip("\n").split("\n")
    assert all(line.startswith(" " * 9) for line in lines[1:])
    assert max(map(len, lines)) <= 40


def test_a_sentence_is_printed_once_for_all_that_differ_in_its_numbers() -> None:
    found = [("a", "92% of the answers to 'val' are cut off"), ("b", "100% of the answers to 'val' are cut off")]
    assert group_sentences([*found, ("c", "no loss")]) == {found[0][1]: ["a", "b"], "no loss": ["c"]}
