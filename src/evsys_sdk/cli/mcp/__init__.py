"""`evsys mcp`: tools for coding agents over the Model Context Protocol, on stdin and stdout, without a dependency.

`protocol.py` implements JSON-RPC, `tools.py` has the tools. Each call runs the command line in a new process and
returns its JSON, so that changed code of a project is loaded by the next call.
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
