"""The backend behind a server."""

from __future__ import annotations

import gc
from pathlib import Path

from evsys_sdk.server.settings import ServeSettings
from evsys_sdk.server.weights.engine import Engine


async def test_all_who_open_the_same_weights_get_one_sampler(tmp_path: Path) -> None:
    engine = Engine.start(ServeSettings(tmp_path))
    try:
        first, second = [await engine.open_sampler("tiny", None) for _ in range(2)]
        assert first is second, "or their samples would not be drawn together"
        saved = (await engine.host("tiny").sampler("saved")).ref
        opened = await engine.open_sampler("tiny", saved)
        assert opened is not first
        assert await engine.open_sampler("tiny", saved) is opened
        del first, second
        gc.collect()
        assert list(engine._samplers) == [("tiny", saved)], "what nobody has open is let go"
    finally:
        await engine.close()
