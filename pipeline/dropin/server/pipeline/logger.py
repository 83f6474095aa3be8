"""`paddle_serving_server.pipeline.logger`: importing it sets up nothing, the server does."""

import os

log_dir: str = os.path.join(os.environ.get("SERVING_LOG_PATH", ""), "PipelineServingLogs")
