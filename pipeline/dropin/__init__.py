"""Runs programs that were written for Paddle Serving's packages.

`python -m pipeline run script.py` installs the import hook. A program that is started in another
way calls `install` before its first import of those packages. `server` replaces
`paddle_serving_server`, `client` replaces `paddle_serving_client`.
"""

from pipeline.dropin.import_hook import install

__all__ = ["install"]
