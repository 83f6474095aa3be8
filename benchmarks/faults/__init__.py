"""Faults of a server's machine, processes and neighbours, while 64 clients ask it.

`fault` runs a fault, `clients` ask meanwhile; `processes`, `outside`, `credentials` and `releases`
have the faults.
"""
