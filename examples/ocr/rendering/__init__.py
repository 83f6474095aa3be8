"""Pages of text that we render ourselves, so that what stands on them is known."""
