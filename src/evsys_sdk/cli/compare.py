"""`evsys compare`: two experiments or more, side by side."""

from __future__ import annotations

import click

from .record_options import answer, format_options, plot_option, root_option

_MOST = 6
"""More would not fit a table, and curves of more could not be told apart."""


@click.command()
@click.argument("experiments", nargs=-1, required=True, metavar="EXPERIMENT EXPERIMENT...")
@plot_option
@root_option
@format_options
def compare(
    experiments: tuple[str, ...], plot: str | None, roots: tuple[str, ...], as_json: bool, as_markdown: bool
) -> None:
    """Compare experiments with the first one: what differs in the config, in the scores, in the curves."""
    from ..history.compare import compare_experiments, compare_page
    from ..history.detail import read_detail
    from ..history.find import experiment_roots, find_experiment

    if not 2 <= len(experiments) <= _MOST:
        raise click.UsageError(f"Give 2 to {_MOST} experiments to compare (got {len(experiments)}).")
    searched = experiment_roots(roots)
    folders = [find_experiment(reference, searched) for reference in experiments]
    if len(set(folders)) < len(folders):
        raise click.UsageError("Two of these are the same experiment. Name different ones; an id names one attempt.")
    comparison = compare_experiments([read_detail(folder) for folder in folders])
    if plot is not None:
        from ..history.plots import plot_comparison

        plot_comparison(comparison, plot)
    answer(
        lambda: {**comparison.to_dict(), **({"plot": plot} if plot else {})},
        as_json=as_json,
        as_markdown=as_markdown,
        text=lambda: compare_page(comparison) + (f"\nplot: {plot}" if plot else ""),
        markdown=lambda: compare_page(comparison, markdown=True) + (f"\n\n![comparison]({plot})" if plot else ""),
    )
