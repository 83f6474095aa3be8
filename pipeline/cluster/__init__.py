"""Fleets: whole servers as replicas on the nodes of a cluster, and the edge before them."""
