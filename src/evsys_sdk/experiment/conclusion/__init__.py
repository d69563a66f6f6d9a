"""What an experiment showed: written by code, from the record alone, the same every time.

    conclude(path)            the conclusion of the experiment in a folder; writes nothing
    write_conclusion(path)    the same, and `conclusion.json` and `conclusion.md` next to it

The modules in the order of the flow: `reading` turns the record into `evidence`, `question` says what is asked of it,
`measured` makes arrays of scores, `comparison` and `trend` do the statistics, `rules` decides, `advice` says what to
doubt and what to do next, `settings` what differed, `verdict` puts it together as a `model`, `markdown` shows it.
"""

from __future__ import annotations

from .model import Conclusion
from .write import conclude, read_stored_conclusion, write_conclusion

__all__ = ["Conclusion", "conclude", "read_stored_conclusion", "write_conclusion"]
