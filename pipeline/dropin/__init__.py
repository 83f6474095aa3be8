"""Runs programs that were written for Paddle Serving's packages: their names lead here.

`python -m pipeline run script.py` does all of it. A program that is started in another way calls
`install` before its first import of those packages. The packages below have the predecessor's
names: `server` stands in for `paddle_serving_server`, `client` for `paddle_serving_client`.
"""

from pipeline.dropin.import_hook import install

__all__ = ["install"]
