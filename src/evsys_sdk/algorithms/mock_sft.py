"""`sft` on the mock backend, whatever backend the run names: for trying a config without spending anything."""

from __future__ import annotations

from typing import ClassVar

from .sft import SFT


class MockSFT(SFT):
    """Supervised fine-tuning that always runs on the mock backend."""

    name: ClassVar[str] = "mock_sft"
    pinned_backend: ClassVar[str | None] = "mock"
