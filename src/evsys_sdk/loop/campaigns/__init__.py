"""Driving campaigns: what may start under one, and the portfolio of strategies that one works through by itself."""
