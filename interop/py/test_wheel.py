"""What a user of the wheel may write: their tests run by ``peerdma run -- pytest``.

HOSTS tells what the place permits: ``apart`` (network namespaces) or ``together``.
"""

import base64
import ctypes
import hashlib
import importlib.metadata
import os
import subprocess
import sys

import peerdma
import pytest
from peerdma.hosts import Hosts

PLACE = os.environ.get("HOSTS", "apart")
PINGPONG = ["ibv_rc_pingpong", "-g", "0", "-n", "100", "-c"]


def test_libibverbs_of_this_process_has_a_device():
    verbs = ctypes.CDLL("libibverbs.so.1")
    verbs.ibv_get_device_list.restype = ctypes.POINTER(ctypes.c_void_p)
    verbs.ibv_get_device_name.restype = ctypes.c_char_p
    verbs.ibv_get_device_name.argtypes = [ctypes.c_void_p]
    count = ctypes.c_int()
    devices = verbs.ibv_get_device_list(ctypes.byref(count))
    names = [verbs.ibv_get_device_name(devices[i]) for i in range(count.value)]
    assert names and all(name.startswith(b"peerdma") for name in names)


def test_pyverbs_registers_memory():
    from pyverbs import enums
    from pyverbs.device import Context, get_device_list
    from pyverbs.mr import MR
    from pyverbs.pd import PD

    name = get_device_list()[0].name.decode()
    with Context(name=name) as context, PD(context) as pd:
        with MR(pd, 4096, enums.IBV_ACCESS_LOCAL_WRITE) as region:
            region.write("words", 5)
            assert region.read(5, 0) == b"words"


def test_variables_are_enough_for_a_child(peerdma_env):
    bare = {"PATH": os.environ["PATH"]}
    devices = ["ibv_devices"]
    seen = subprocess.run(devices, env={**bare, **peerdma_env}, stdout=subprocess.PIPE, check=True)
    assert b"peerdma" in seen.stdout


def test_options_are_those_of_the_program(tmp_path):
    capture, trace = tmp_path / "packets.pcapng", tmp_path / "requests.trace"
    options = {"gpu": "nvidia", "pcap": capture, "pcap_bytes": 128, "trace": trace}
    given = peerdma.env(**options, base={})
    assert given["PEERDMA_PCAP"] == str(capture)
    assert given["PEERDMA_TRACE"] == str(trace)
    assert "libpeerdma-cuda" in given["LD_LIBRARY_PATH"]
    command = ["env", "--format=json", *peerdma.options(**options)]
    printed = subprocess.run(
        [peerdma.program(), *command], env={}, stdout=subprocess.PIPE, check=True, text=True
    )
    assert all(value in printed.stdout for value in given.values())
    with pytest.raises(peerdma.Error, match="no_such_nic"):
        peerdma.env(nic="no_such_nic")


def pingpong(hosts):
    with hosts.a.popen(PINGPONG, stdout=subprocess.PIPE, text=True) as server:
        try:
            for _ in range(100):
                client = hosts.b.run([*PINGPONG, hosts.a.address], stdout=subprocess.PIPE, text=True)
                if client.returncode == 0:
                    break
            words = server.communicate(timeout=30)[0]
        finally:
            server.kill()
    assert client.returncode == 0 and server.returncode == 0
    return words + client.stdout


@pytest.mark.skipif(PLACE != "apart", reason="no namespaces here")
def test_two_hosts_are_apart(peerdma_hosts):
    assert peerdma_hosts.refused is None
    assert peerdma_hosts.a.address != peerdma_hosts.b.address
    words = pingpong(peerdma_hosts)
    # The GIDs are of the addresses of the two: the packets cross the wire between them.
    for host in (peerdma_hosts.a, peerdma_hosts.b):
        assert f"::ffff:{host.address}" in words


@pytest.mark.skipif(PLACE != "together", reason="namespaces are permitted here")
def test_two_hosts_are_processes_where_no_namespace_can_be_made(peerdma_hosts):
    assert peerdma_hosts.refused
    pingpong(peerdma_hosts)


def test_hosts_leave_nothing():
    with Hosts() as hosts:
        holders = [holder.pid for holder in hosts._holders]
        assert len(holders) == (2 if PLACE == "apart" else 0)
    for pid in holders:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


def test_installed_files_are_those_of_the_record():
    files = importlib.metadata.files("peerdma")
    hashed = [file for file in files if file.hash is not None]
    for file in hashed:
        digest = hashlib.new(file.hash.mode, file.read_binary()).digest()
        assert base64.urlsafe_b64encode(digest).rstrip(b"=").decode() == file.hash.value
    names = {str(file) for file in hashed}
    assert {"peerdma/py.typed", "peerdma.libs/peerdma", "peerdma.libs/libpeerdma.so"} <= names
    assert os.access(peerdma.program(), os.X_OK), sys.prefix
