"""What everything that crosses the API has in common, and how a refusal looks."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict

type Scope = Literal["read", "write", "admin"]


class Shape(BaseModel):
    """Base of everything that crosses the API; unknown fields are refused on the way in."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Problem(Shape):
    """Why a request was refused."""

    error: str
    """A short name: unauthorized, forbidden, not_found, bad_request, conflict, too_large, ..."""
    message: str
    """What is wrong and what to do, in a sentence."""
