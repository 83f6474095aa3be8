"""OpenAI's API over HTTP: `/v1/chat/completions` and more, for clients that are made for it."""
