"""Plain JSON over HTTP: `POST /api/<name>`, with JSON objects as request and answer."""
