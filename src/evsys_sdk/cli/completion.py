"""`evsys completion`: the script that makes a shell complete evsys commands."""

from __future__ import annotations

import click

_WHERE = {
    "bash": "~/.bashrc",
    "zsh": "~/.zshrc",
    "fish": "~/.config/fish/completions/evsys.fish",
}


@click.command()
@click.argument("shell", type=click.Choice(list(_WHERE)))
def completion(shell: str) -> None:
    """Print the completion script for SHELL; add `eval "$(evsys completion bash)"` to your shell's start-up file."""
    from click.shell_completion import get_completion_class

    from .main import evsys

    found = get_completion_class(shell)
    assert found is not None  # click ships these three
    click.echo(found(evsys, {}, "evsys", "_EVSYS_COMPLETE").source())
    click.echo(f"# To keep it, put the line that evaluates this into {_WHERE[shell]}", err=True)
