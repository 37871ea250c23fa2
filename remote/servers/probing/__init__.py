"""What is looked at around a server: is it ready, is capture right, what does it need, and who stands in its way."""
