"""`python -m benchmarks.gpu`: everything that needs a card, in one command, as a table."""
