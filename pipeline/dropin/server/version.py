"""`paddle_serving_server.version`: the release that this interface follows."""

version_tag = serving_server_version = "0.9.0"
