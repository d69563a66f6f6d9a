"""Harbor's terminal agent Terminus-2: the policy types into a terminal and reads its screen.

    agent: { kind: terminus_2, params: { max_turns: 30 } }

It needs engine `harbor` and an environment with a shell and tmux.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from pydantic import Field

from ...config.base import Strict
from ..harbor.foreign_agent import ForeignAgent


class Terminus2Config(Strict):
    """Parameters of `terminus_2`."""

    max_turns: int = Field(default=50, ge=1)
    """How often the policy may act."""
    parser_name: Literal["json", "xml"] = "json"
    """In which form the policy writes its keystrokes."""
    enable_summarize: bool = False
    """Whether a full context is summarized by the policy; the turns are then no longer one conversation."""
    kwargs: dict[str, Any] = {}
    """Further options of Harbor's agent."""


class Terminus2(ForeignAgent):
    """Lets the policy type into a terminal; Harbor's agent, for engine `harbor` only."""

    name: ClassVar[str] = "terminus_2"
    Config = Terminus2Config

    def __init__(self, **params: Any) -> None:
        cfg = Terminus2Config(**params)
        options: Mapping[str, Any] = {
            "max_turns": cfg.max_turns,
            "parser_name": cfg.parser_name,
            "enable_summarize": cfg.enable_summarize,
            "record_terminal_session": False,  # would install a recorder into the sandbox
            "suppress_max_turns_warning": True,
            **cfg.kwargs,
        }
        super().__init__("harbor.agents.terminus_2:Terminus2", options)
