"""Plain JSON over HTTP: `POST /api/<name>`, where request and answer are JSON objects."""
