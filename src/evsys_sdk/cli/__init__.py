"""The command line, `evsys`: a verb is imported only when it is called; `main` knows where each one is."""

import gc

# Before anything else is imported: start-up makes many objects and hardly any garbage; looking for it costs a tenth.
gc.set_threshold(100_000)
