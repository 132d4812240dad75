"""RDMA programs, unmodified, on a Linux machine without RDMA hardware.

The package brings the program ``peerdma`` and its libraries. A program that is started with the
variables of :func:`env`, or by ``peerdma run``, finds a software RDMA NIC::

    subprocess.run(["ibv_devinfo"], env={**os.environ, **peerdma.env()}, check=True)

Python itself is such a program: ``peerdma run -- pytest`` lets tests use pyverbs, or libibverbs by
ctypes. The libraries are not loaded into a process that has started without them.

:class:`~peerdma.hosts.Hosts` is two hosts on one machine. pytest has it as the fixture
``peerdma_hosts``, and the variables as ``peerdma_env`` (:mod:`peerdma.pytest_plugin`).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Union

    AnyPath = Union[str, "os.PathLike[str]"]

__all__ = ["Error", "env", "main", "options", "program"]


class Error(RuntimeError):
    """``peerdma`` refused; its words are the message."""


def program() -> Path:
    """The program ``peerdma`` of this package. Its libraries lie beside it."""
    return Path(__file__).resolve().parent.parent / "peerdma.libs" / "peerdma"


def options(
    *,
    nic: str | Iterable[str] = (),
    gpu: str | bool = False,
    rsockets: bool = False,
    shared_heap: bool = False,
    pcap: AnyPath | None = None,
    pcap_bytes: int | None = None,
    trace: AnyPath | None = None,
    report: AnyPath | None = None,
    fault: AnyPath | None = None,
    fault_report: AnyPath | None = None,
) -> list[str]:
    """The options of ``peerdma run`` and ``peerdma env``, as words of a command line.

    :param nic: show only these NICs of the configuration.
    :param gpu: give the program software GPUs: ``True`` for those of the configuration, or a preset
        such as ``"nvidia"``.
    :param rsockets: make sockets rsockets.
    :param shared_heap: let larger blocks of memory lie in a file that other processes can map.
    :param pcap: record every packet in this file.
    :param pcap_bytes: record no more than this many bytes of each packet.
    :param trace: write the life of each work request to this file.
    :param report: add how dma-bufs were reached to this file; ``"-"`` is standard error.
    :param fault: inject the faults of this plan.
    :param fault_report: add what fired to this file.
    """
    words = [f"--nic={name}" for name in ([nic] if isinstance(nic, str) else nic)]
    if gpu:
        words.append("--gpu" if gpu is True else f"--gpu={gpu}")
    if rsockets:
        words.append("--rsockets")
    if shared_heap:
        words.append("--shared-heap")
    values = {
        "pcap": pcap,
        "pcap-bytes": pcap_bytes,
        "trace": trace,
        "report": report,
        "fault": fault,
        "fault-report": fault_report,
    }
    for name, value in values.items():
        if value is not None:
            text = str(value) if isinstance(value, int) else os.fspath(value)
            words.append(f"--{name}={text}")
    return words


def env(
    *,
    nic: str | Iterable[str] = (),
    gpu: str | bool = False,
    rsockets: bool = False,
    shared_heap: bool = False,
    pcap: AnyPath | None = None,
    pcap_bytes: int | None = None,
    trace: AnyPath | None = None,
    report: AnyPath | None = None,
    fault: AnyPath | None = None,
    fault_report: AnyPath | None = None,
    sysfs: AnyPath | None = None,
    base: dict[str, str] | None = None,
) -> dict[str, str]:
    """The variables with which a program runs on peerdma: what ``peerdma env`` prints.

    The parameters are those of :func:`options`, and two more.

    :param sysfs: make a copy of ``/sys`` as the program is to see it in this directory, which must
        not exist or be empty.
    :param base: the variables that the program has besides, which the lists among ours extend;
        those of this process if it is not given. They are not in the result.
    :raises Error: if ``peerdma env`` refuses.
    """
    words = options(
        nic=nic,
        gpu=gpu,
        rsockets=rsockets,
        shared_heap=shared_heap,
        pcap=pcap,
        pcap_bytes=pcap_bytes,
        trace=trace,
        report=report,
        fault=fault,
        fault_report=fault_report,
    )
    if sysfs is not None:
        words.append(f"--sysfs={os.fspath(sysfs)}")
    done = subprocess.run(
        [program(), "env", "--format=json", *words],
        env=base,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise Error(done.stderr.strip())
    variables: dict[str, str] = json.loads(done.stdout)
    return variables


def main() -> NoReturn:
    """The command ``peerdma``: becomes the program."""
    path = program()
    os.execv(path, [os.fspath(path), *sys.argv[1:]])
