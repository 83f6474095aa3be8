"""Traces of single requests in Triton's file: what is traced, collected and written."""
