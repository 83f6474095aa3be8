"""Soaks: the resources of a service that is under load for a long time.

`__main__` runs a soak and judges it. `loads` has the soaks: their services and their loads.
"""
