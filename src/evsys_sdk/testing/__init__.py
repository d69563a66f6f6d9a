"""Conformance suites: subclass one in your own tests to check an extension against the protocol it claims to speak."""
