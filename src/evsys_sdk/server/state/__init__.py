"""Server state between requests: sessions, models in training, pending results, fair sharing and memory."""
