"""What holds for every test: nothing leaves the machine, threads are few.

Environment variables are set before anything of the project is imported. The check of axis names is an
option of pytest (`--jaxtyping-packages` in pyproject.toml).
"""

import ipaddress
import os
import socket
from collections.abc import Iterator

os.environ |= {
    "HF_HUB_OFFLINE": "1",
    "HF_DATASETS_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "HF_HUB_DISABLE_PROGRESS_BARS": "1",
    "TQDM_DISABLE": "1",
    "MPLBACKEND": "Agg",
}

import jaxtyping
import pytest
import torch

from tried import (  # noqa: F401 - hooks of pytest
    pytest_addoption,
    pytest_collection_modifyitems,
    pytest_configure,
    pytest_sessionstart,
)

# Parallel workers share the cores; alone, two threads are what the smallest supported machine has.
torch.set_num_threads(1 if "PYTEST_XDIST_WORKER" in os.environ else min(2, torch.get_num_threads()))


class NetworkUse(RuntimeError):
    """A test tried to reach another machine."""


@pytest.fixture(autouse=True, scope="session")
def no_network() -> Iterator[None]:
    """Refuse connections to, and name look-ups of, anything but this machine."""
    connect, connect_ex, look_up = socket.socket.connect, socket.socket.connect_ex, socket.getaddrinfo

    def guarded_connect(self: socket.socket, address: object) -> None:
        _refuse_foreign(self.family, address)
        connect(self, address)

    def guarded_connect_ex(self: socket.socket, address: object) -> int:
        _refuse_foreign(self.family, address)
        return connect_ex(self, address)

    def guarded_look_up(host: object, *args: object, **kwargs: object) -> list:
        if host is not None and not _is_local(host):
            raise NetworkUse(f"tests run without network, but one looked up {host!r}")
        return look_up(host, *args, **kwargs)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(socket.socket, "connect", guarded_connect)
        patch.setattr(socket.socket, "connect_ex", guarded_connect_ex)
        patch.setattr(socket, "getaddrinfo", guarded_look_up)
        yield


def _refuse_foreign(family: int, address: object) -> None:
    if family in (socket.AF_INET, socket.AF_INET6) and not _is_local(address[0]):
        raise NetworkUse(f"tests run without network, but one connected to {address}")


def _is_local(host: object) -> bool:
    name = host.decode() if isinstance(host, bytes) else str(host)
    if name in ("localhost", "", socket.gethostname()):
        return True
    try:
        parsed = ipaddress.ip_address(name.partition("%")[0])
    except ValueError:
        return False
    return parsed.is_loopback or parsed.is_unspecified


@pytest.fixture
def no_axis_check() -> Iterator[None]:
    """What users get: under pytest the check of axis names would speak before our own messages."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)
