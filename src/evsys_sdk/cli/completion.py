"""`evsys completion`: the script that makes a shell complete evsys commands."""

from __future__ import annotations

import click

_WHERE = {"bash": "~/.bashrc", "zsh": "~/.zshrc", "fish": "~/.config/fish/config.fish"}
_HOW = {
    "bash": 'eval "$(evsys completion bash)"',
    "zsh": 'eval "$(evsys completion zsh)"',
    "fish": "evsys completion fish | source",
}


@click.command()
@click.argument("shell", type=click.Choice(list(_WHERE)))
def completion(shell: str) -> None:
    """Print the completion script for SHELL; its first line says how to keep it."""
    from click.shell_completion import get_completion_class

    from .main import evsys

    found = get_completion_class(shell)
    assert found is not None  # click ships these three
    click.echo(f"# To keep it, add this to {_WHERE[shell]}:  {_HOW[shell]}")
    click.echo(found(evsys, {}, "evsys", "_EVSYS_COMPLETE").source())
