"""`paddle_serving_server.pipeline.pipeline_server`."""

from pipeline.dropin.absent import absent
from pipeline.server import PipelineServer

ServerYamlConfChecker = absent(
    "ServerYamlConfChecker", __name__, "`prepare_server` checks the configuration"
)

__all__ = ["PipelineServer", "ServerYamlConfChecker"]
