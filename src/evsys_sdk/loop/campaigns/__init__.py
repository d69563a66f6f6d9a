"""Run campaigns: admission of experiments, and the driver that works through a portfolio of strategies."""
