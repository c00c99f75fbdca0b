"""Does selection pay? A large model on selected batches against uniform ones, on every budget."""
