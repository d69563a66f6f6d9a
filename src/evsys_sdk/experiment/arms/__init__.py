"""The arms of an experiment, from the config to their results.

arm, overrides                       config -> arms; variations of a config (`--steps`, `--dry-run`)
rows, recipe, observed_log_store     the parts of one arm
project_code                         modules that a worker imports first
scheduler, interrupts                runs all arms on a launcher, until they end or a signal stops them
results                              results of arms and of the experiment
"""
