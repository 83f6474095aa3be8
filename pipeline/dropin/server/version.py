"""`paddle_serving_server.version`: the release whose interface this is."""

version_tag = serving_server_version = "0.9.0"
