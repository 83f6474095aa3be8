"""Rendered pages of text, so that their text is known."""
