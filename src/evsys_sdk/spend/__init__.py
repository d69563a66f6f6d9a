"""Spend of an experiment and its limits.

Prices are in `config/prices.py`, the file format in `record/ledger.py`.

ledger           the spend of an experiment, written by all of its arms, and its limits
meter            counts the usage of one arm: through its training client and its inference clients
metered_client   the training client that reports to the meter
"""
