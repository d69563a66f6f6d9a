"""Conformance suites: subclass one in your tests to check an extension against its protocol."""
