"""Parsl's apps on leased cores.

>>> import parsl
>>> from sublet.parsl import SubletExecutor
>>> with parsl.load(parsl.Config(executors=[SubletExecutor(cores=8)])):
...     print(parsl.python_app(math.factorial)(20).result())
"""

import os

from parsl.executors.base import ParslExecutor
from parsl.executors.errors import InvalidResourceSpecification
from parsl.utils import RepresentationMixin

from ._client import default_client

__all__ = ["SubletExecutor"]


class SubletExecutor(ParslExecutor, RepresentationMixin):
    """A Parsl executor whose workers are on leased cores, from Parsl's start to its end.

    An app whose worker ends fails with `WorkerDied`, which Parsl's `retries` may repeat; other apps continue.

    Args:
        label: Name of the executor in Parsl.
        cores: Number of cores to lease; by default the number of this machine's cores.
        client: Client that leases; by default the default client.
        **lease: Options of `Client.lease`.
    """

    def __init__(self, label="sublet", cores=None, client=None, **lease):
        super().__init__()
        self.label = label
        self.cores = len(os.sched_getaffinity(0)) if cores is None else cores
        self.client = client
        self._options = lease
        self._lease = None

    def start(self):
        """Leases the cores."""
        client = default_client() if self.client is None else self.client
        self._lease = client.lease(self.cores, **self._options)

    def submit(self, func, resource_specification, *args, **kwargs):
        """Sends an app; returns its future."""
        if resource_specification:
            reason = "each app has one leased core"
            raise InvalidResourceSpecification(set(resource_specification), reason)
        return self._lease.submit(func, *args, **kwargs)

    def shutdown(self):
        """Releases the cores when all apps have ended."""
        if self._lease is not None:
            self._lease.close()
        super().shutdown()

    def monitor_resources(self):
        """Whether Parsl monitors the processes of apps: sandboxes do not allow it."""
        return False
