"""What a server holds between requests: sessions, models in training, results that wait, turns and memory."""
