"""Stores between servers: large inputs are left there by who sends, and fetched by who serves."""
