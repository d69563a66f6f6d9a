"""Experiments that run by themselves: waiting for approval, in the background, and followed from outside."""
