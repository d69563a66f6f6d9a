"""What a server really does, found out by asking it: one function per fact, over the training client's protocol.

facts      what is known about a server, and what may be relied on
cache      where an answer is kept, so that a server is asked once
training   asks about gradients and losses; sampling about samples
probe      asks everything and collects the facts
"""
