"""Triton's texts for what a server, or the way it was started, does not take."""

from __future__ import annotations

NO_LOADING = "explicit model load / unload is not allowed if polling is enabled"
NO_REPOSITORY_NAME = "'repository_name' specification is not supported"
