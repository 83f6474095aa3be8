"""Attacks on the gateway's ports by single callers, and what others feel of them (`make attack`).

`frames` writes bytes of HTTP/2 that no client would send, `catalog` has an attack each, `attacker`
fires one of them from a process of its own, `callers` ask meanwhile, and `__main__` measures. All
is bounded: in connections, frames a second and seconds, and only this machine is asked.
"""
