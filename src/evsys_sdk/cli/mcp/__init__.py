"""`evsys mcp`: tools for coding agents over the Model Context Protocol, on stdin and stdout, without a dependency.

`protocol.py` speaks JSON-RPC, `tools.py` has the tools; each of them runs the command line in its own process and
answers with its JSON, so that there is one implementation, and code that a project changes is read anew by each call.
"""

from __future__ import annotations

import click


@click.command()
def mcp() -> None:
    """Offer tools to a coding agent on stdin and stdout, until it closes them."""
    import sys

    from .protocol import McpServer
    from .tools import TOOLS

    McpServer(TOOLS, sys.stdin.buffer, sys.stdout).serve()
