"""The command line, `evsys`: one module per verb, imported only when that verb is called."""

import gc

# Before anything else is imported: start-up makes many objects and hardly any garbage; looking for it costs a tenth.
gc.set_threshold(50_000)
