"""The arms of an experiment: what they are, what each is made of, and who sees to it that all of them are trained.

arm, overrides                       config -> arms, and the variations of a config that the command line asks for
rows, recipe, observed_log_store     what one arm is made of
project_code                         what a worker must import first
scheduler, interrupts                arms -> a launcher, until all have ended or somebody says stop
results                              how each ended
"""
