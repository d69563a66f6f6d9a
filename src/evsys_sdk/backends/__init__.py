"""Room 3: where weights live.

client   the protocol every backend speaks: TrainingClient and SamplingClient
datum    what is trained on
losses   what every named loss means, as formulas on log-probabilities
checks   what is refused before it reaches a backend
future   operations that are submitted now and awaited later
mock/    a small, real language model in numpy
tinker/  any server that speaks the Tinker protocol
probes/  what a server really does, found out by asking it
"""
