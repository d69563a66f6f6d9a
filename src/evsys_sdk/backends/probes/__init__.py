"""What a server really does, found out by asking it: one function per fact, over the training client's protocol.

facts      what is known about a server, what may be relied on, and where it is kept, so that a server is asked once
training   asks about gradients and losses
probe      asks about sampling, asks everything, and collects the facts
"""
