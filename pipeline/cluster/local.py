"""LocalCluster: a Ray cluster of several nodes on one machine, for trials and tests."""

from __future__ import annotations

import contextlib
import os
from types import TracebackType
from typing import Any

from pipeline.errors import InitError

_STORE_BYTES = 200 * 2**20  # of each node's object store


class LocalCluster:
    """A head and other nodes, all of this machine; `with` it gives the address.

    Raises InitError: there is no Ray here.
    """

    def __init__(self, nodes: int, num_cpus: int) -> None:
        self._nodes = nodes
        self._node = {"num_cpus": num_cpus, "object_store_memory": _STORE_BYTES}
        self.cluster: Any = None

    def __enter__(self) -> str:
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        try:
            from ray.cluster_utils import Cluster
        except ImportError as error:
            raise InitError("needs Ray: pip install 'pipeline-serving[ray]'") from error
        self.cluster = Cluster()
        try:
            self.cluster.add_node(**self._node, include_dashboard=False)  # the head
            for _ in range(self._nodes - 1):
                self.cluster.add_node(**self._node)
            self.cluster.wait_for_nodes()
        except BaseException:  # Ctrl-C, too: no process of it stays
            self._shut_down()
            raise
        return str(self.cluster.address)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._shut_down()

    def _shut_down(self) -> None:
        with contextlib.suppress(Exception):  # its processes may have ended already
            self.cluster.shutdown()
