"""The conclusion of an experiment: computed from its record alone, and reproducible.

    conclude(path)            return the conclusion of the experiment in a folder; write nothing
    write_conclusion(path)    also write `conclusion.json` and `conclusion.md` to the folder

The modules in the order of use: `reading` converts the record to `evidence`, `question` selects the metric and the
baseline, `measured` makes arrays of scores, `comparison`, `trend` and `interim` compute the statistics, `rules` decides
the verdict, `advice` lists threats and next steps, `verdict` assembles the `model`, `markdown` renders it.
"""

from __future__ import annotations

from .model import Conclusion
from .write import conclude, read_stored_conclusion, write_conclusion

__all__ = ["Conclusion", "conclude", "read_stored_conclusion", "write_conclusion"]
