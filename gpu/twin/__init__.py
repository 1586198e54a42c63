"""The twin: a simulated trace executed on real tensors, and what became of the predictions."""
