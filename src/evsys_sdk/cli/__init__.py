"""The command line, `evsys`: one module per verb, imported only when that verb is called."""
