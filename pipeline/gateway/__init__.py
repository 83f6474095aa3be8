"""The gateway: an HTTP edge in Go, in front of one server or of a fleet of them."""
