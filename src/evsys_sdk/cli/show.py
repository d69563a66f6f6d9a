"""`evsys show`: one experiment."""

from __future__ import annotations

import click

from .record_options import answer, format_options, plot_option, root_option


@click.command()
@click.argument("experiment")
@plot_option
@root_option
@format_options
def show(experiment: str, plot: str | None, roots: tuple[str, ...], as_json: bool, as_markdown: bool) -> None:
    """Show EXPERIMENT (a path, an id, its beginning, or a name): verdict, runs, failures, spend, how to resume."""
    from ..history.detail import read_detail
    from ..history.find import experiment_roots, find_experiment
    from ..history.show import find_gain, show_data, show_page

    searched = experiment_roots(roots)
    detail = read_detail(find_experiment(experiment, searched))
    gain = find_gain(detail, searched)
    if plot is not None:
        from ..history.plots import plot_experiment

        plot_experiment(detail, plot)
    answer(
        lambda: {**show_data(detail, gain), **({"plot": plot} if plot else {})},
        as_json=as_json,
        as_markdown=as_markdown,
        text=lambda: show_page(detail, gain) + (f"\n- plot: {plot}" if plot else ""),
        markdown=lambda: (
            show_page(detail, gain, markdown=True) + (f"\n\n![{detail.summary.id}]({plot})" if plot else "")
        ),
    )
