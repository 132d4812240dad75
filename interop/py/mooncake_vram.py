#!/usr/bin/python3
"""Mooncake's transfer engine between two processes; see vram.py."""
import vram
from mooncake.engine import TransferEngine


class Engine:
    def __init__(self, address, memory):
        self.engine, self.address = TransferEngine(), address
        assert self.engine.initialize(address, "P2PHANDSHAKE", "rdma", "peerdma0") == 0
        if self.engine.register_memory(memory, vram.SIZE) != 0:
            raise SystemExit("register_memory fails")

    def about(self):
        return f"{self.address}:{self.engine.get_rpc_port()}"

    def connect(self, about):
        self.peer = about

    def write(self, here, there):
        self.transfer(self.engine.transfer_sync_write, here, there)

    def read(self, here, there):
        self.transfer(self.engine.transfer_sync_read, here, there)

    def transfer(self, how, here, there):
        if how(self.peer, here, there, vram.SIZE) != 0:
            raise SystemExit(f"{how.__name__} fails")


vram.main(Engine)
