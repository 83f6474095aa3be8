"""Advice live: trials of a service with other settings under a replayed load, and their search."""
