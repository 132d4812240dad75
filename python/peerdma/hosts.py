"""Two hosts on one machine.

Where the kernel permits it, each host is a network namespace of its own, and its packets are real
RoCEv2 on a veth pair. Root makes them as they are, others within a user namespace, in which their
programs see themselves as root. In a sandbox that permits neither, the hosts are processes of this
one, on its loopback: two NICs' worth of programs, but one host.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from typing import TYPE_CHECKING, Any, NamedTuple

import peerdma

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import TracebackType

__all__ = ["Host", "Hosts"]

# Addresses of documentation (RFC 5737): nobody is there, and the namespaces have no way out.
_ADDRESSES = ("192.0.2.1", "192.0.2.2")
_NETDEV = "eth0"
_TOOLS = ("ip", "nsenter", "unshare")


class Host(NamedTuple):
    """A place where programs run on peerdma."""

    #: The address by which the other host reaches this one.
    address: str
    #: The words in front of a command line that make it run here.
    prefix: tuple[str, ...]

    def command(self, args: Sequence[str], options: Sequence[str] = ()) -> list[str]:
        """The command line that runs a program here, by ``peerdma run``.

        :param options: options of ``peerdma run``, as :func:`peerdma.options` makes them.
        """
        program = os.fspath(peerdma.program())
        return [*self.prefix, program, "run", *options, "--", *args]

    def run(
        self,
        args: Sequence[str],
        *,
        options: Sequence[str] = (),
        **keywords: Any,
    ) -> subprocess.CompletedProcess[Any]:
        """``subprocess.run`` on this host, with its keywords."""
        return subprocess.run(self.command(args, options), **keywords)

    def popen(
        self,
        args: Sequence[str],
        *,
        options: Sequence[str] = (),
        **keywords: Any,
    ) -> subprocess.Popen[Any]:
        """``subprocess.Popen`` on this host, with its keywords.

        A child that still runs when the hosts are closed keeps its namespace: end it first, as
        ``with host.popen(...) as child`` does.
        """
        return subprocess.Popen(self.command(args, options), **keywords)


class Hosts:
    """Two hosts, ``a`` and ``b``, which end with the ``with`` statement.

    ``hosts.refused`` is ``None`` if they are apart, otherwise why they are not.
    """

    a: Host
    b: Host
    refused: str | None

    def __init__(self) -> None:
        self._holders: list[subprocess.Popen[bytes]] = []
        self.refused = None
        try:
            self.a, self.b = self._separate()
        except _RefusedError as why:
            self.close()
            self.refused = str(why)
            self.a = self.b = Host("127.0.0.1", ())

    def __enter__(self) -> Hosts:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Ends the namespaces, once the programs in them have ended."""
        for holder in self._holders:
            # Its standard input does not end if a fork of this process has a copy of the pipe.
            holder.kill()
            holder.wait()
            for pipe in (holder.stdin, holder.stdout):
                assert pipe is not None
                pipe.close()
        self._holders = []

    def _separate(self) -> tuple[Host, Host]:
        missing = [tool for tool in _TOOLS if _find(tool) is None]
        if missing:
            raise _RefusedError(f"no program {', '.join(missing)}")
        try:
            # Root stays who it is: a user namespace would hide the files of others.
            user = () if os.geteuid() == 0 else ("--user", "--map-root-user")
            first = self._hold([_tool("unshare"), *user, "--net"])
        except _RefusedError:
            if os.geteuid() != 0:
                raise
            user = ("--user", "--map-root-user")
            first = self._hold([_tool("unshare"), *user, "--net"])
        owner = ("--user", "--preserve-credentials") if user else ()
        ends = [(_tool("nsenter"), "--target", str(first), *owner, "--net")]
        second = self._hold([*ends[0], _tool("unshare"), "--net"])
        ends.append((_tool("nsenter"), "--target", str(second), *owner, "--net"))
        # Room for packets of the largest path MTU.
        name, mtu = ("name", _NETDEV), ("mtu", "4200")
        peer = ("peer", *name, *mtu, "netns", str(second))
        _do([*ends[0], _tool("ip"), "link", "add", *name, *mtu, "type", "veth", *peer])
        for end, address in zip(ends, _ADDRESSES):
            ip = [*end, _tool("ip")]
            _do([*ip, "link", "set", "lo", "up"])
            _do([*ip, "address", "add", f"{address}/24", "dev", _NETDEV])
            _do([*ip, "link", "set", _NETDEV, "up"])
            # Groups of datagrams need one.
            _do([*ip, "route", "add", "default", "dev", _NETDEV])
        for end in ends:
            # The carrier comes up a moment later, and packets before that are lost.
            while b"LOWER_UP" not in _do([*end, _tool("ip"), "-o", "link", "show", _NETDEV]):
                time.sleep(0.01)
        return Host(_ADDRESSES[0], ends[0]), Host(_ADDRESSES[1], ends[1])

    def _hold(self, enter: list[str]) -> int:
        """A process in new namespaces; it ends when its standard input does, as by our end."""
        # It says its number when it is inside: the tools before it may have started it as a child.
        script = ["sh", "-c", "echo $$ && exec cat >/dev/null"]
        holder = subprocess.Popen(
            [*enter, "--", *script],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        self._holders.append(holder)
        assert holder.stdout is not None and holder.stderr is not None
        line = holder.stdout.readline()
        with holder.stderr:
            if not line:
                raise _RefusedError(holder.stderr.read().decode(errors="replace").strip())
        return int(line)


class _RefusedError(Exception):
    """The hosts cannot be apart."""


def _find(tool: str) -> str | None:
    """Where a tool is: PATH of a user without rights may lack its directory."""
    return shutil.which(tool) or shutil.which(tool, path="/usr/sbin:/sbin")


def _tool(tool: str) -> str:
    return _find(tool) or tool


def _do(command: list[str]) -> bytes:
    done = subprocess.run(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        check=False,
    )
    if done.returncode != 0:
        raise _RefusedError(done.stdout.decode(errors="replace").strip())
    return done.stdout
