"""The command line `evsys`. `main` imports the module of a verb when it is called."""

import gc

# Before other imports: start-up creates many objects and little garbage, and collecting it costs a tenth of the time.
gc.set_threshold(100_000)
