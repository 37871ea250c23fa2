"""Answers a run's prompts with the model, and keeps the sampled ids. Runs on a GPU host."""
