"""Doors on Unix sockets, and what a front may say and hear at their gRPC."""

from __future__ import annotations
