"""Measure the actual behaviour of a server: one function per fact, over the training client's protocol.

facts      the known facts of a server, the assumptions about others, and their file, so that a server is probed once
training   probes of gradients and losses
probe      probes of sampling, and the run of all probes
"""
