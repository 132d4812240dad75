"""Fixtures of pytest.

``peerdma_env``
    The variables with which a program runs on peerdma, once for the session.

``peerdma_hosts``
    Two hosts for one test: see :class:`peerdma.hosts.Hosts`. Where a sandbox permits no namespaces
    they are two processes of one host; a test that needs more skips itself by ``hosts.refused``.

Tests that use libibverbs in their own process are started by ``peerdma run -- pytest``; these
fixtures need nothing of the kind.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

import peerdma
from peerdma.hosts import Hosts

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="session")
def peerdma_env() -> dict[str, str]:
    """The variables with which a program runs on peerdma."""
    return peerdma.env()


@pytest.fixture
def peerdma_hosts() -> Iterator[Hosts]:
    """Two hosts: network namespaces where permitted, else two processes of this one."""
    with Hosts() as hosts:
        yield hosts
