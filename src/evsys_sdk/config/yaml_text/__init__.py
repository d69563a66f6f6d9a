"""Strict YAML: text to plain data with positions, and plain data back to text.

Reading follows the YAML 1.2 core rules and refuses whatever would be guessed at: duplicate keys, keys that are not
text, custom tags, several documents, alias bombs. Each refusal is a `ConfigError` with the line, the value and the
remedy. This layer knows nothing about experiments, and leaves it to its caller to insist on a mapping at the top.

    document = read_yaml_file(Path("config.yaml"))
    document.data["run"]["algorithm"]                    # plain dict, list, str, int, float, bool, None
    document.position(("run", "algorithm", "kind"))      # (12, 5)
    read_yaml(write_yaml(data)).data == data

| written            | read as | because                                                                         |
|--------------------|---------|---------------------------------------------------------------------------------|
| `yes no on off`    | text    | as in YAML 1.2; only `true` and `false` (`True`, `TRUE` ...) are booleans       |
| `1e-5 1E5 .5 5.`   | float   | as in YAML 1.2; YAML 1.1 readers see text in `1e-5`                             |
| `0x10 0o17`        | int     |                                                                                 |
| `1_000 0b1 1:30`   | text    | as in YAML 1.2; underscores, binary and base 60 are YAML 1.1                    |
| `012`              | refused | 12 in YAML 1.2 and 10 in YAML 1.1: quote it or drop the zero                    |
| `1e999`            | refused | not a finite number; infinity is `.inf`                                         |
| `2024-01-01`       | text    | dates stay text                                                                 |
| `<<: *base`        | merge   | the mapping's own keys win; with a list of mappings the earlier ones win        |
| two `&base`        | refused | legal, but an alias would then change its meaning half-way                      |
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...lazy import lazy_names
from .document import MAX_BYTES, Document, read_yaml, read_yaml_file

if TYPE_CHECKING:
    from .write import write_yaml

__all__ = ["MAX_BYTES", "Document", "read_yaml", "read_yaml_file", "write_yaml"]

__getattr__ = lazy_names(__name__, {"write": "write_yaml"})  # most commands only read
