"""A run's prompts to conversations that the model itself answered, id by id; runs on a GPU host."""
