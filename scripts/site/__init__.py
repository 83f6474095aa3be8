"""The documentation as a site: `python scripts/build_site.py`."""
