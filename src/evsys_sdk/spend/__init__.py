"""Room 9: what an experiment spends, and when that is enough.

Prices are config (`config/prices.py`), the file is the record's (`record/ledger.py`); here they meet what is used.

ledger           the spend of an experiment, written by all of its arms; its limits, and which of them is reached
meter            counts what one arm uses: through its training client, and wherever it asks inference clients
metered_client   the training client that tells the meter
"""
