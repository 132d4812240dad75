#!/usr/bin/python3
"""NIXL between two processes; see vram.py."""
import time

import vram
from nixl_cu12 import nixl_agent, nixl_agent_config


class Agent:
    def __init__(self, address, memory):
        self.agent = nixl_agent(f"{address} {memory}", nixl_agent_config(backends=["UCX"]))
        assert self.agent.register_memory(self.agent.get_reg_descs([(memory, vram.SIZE, 0, "")], mem_type="VRAM"))

    def about(self):
        return self.agent.get_agent_metadata().hex()

    def connect(self, about):
        self.peer = self.agent.add_remote_agent(bytes.fromhex(about))

    def write(self, here, there):
        self.transfer("WRITE", here, there)

    def read(self, here, there):
        self.transfer("READ", here, there)

    def transfer(self, what, here, there):
        ours, theirs = (self.agent.get_xfer_descs([(at, vram.SIZE, 0)], mem_type="VRAM") for at in (here, there))
        request = self.agent.initialize_xfer(what, ours, theirs, self.peer)
        state, end = self.agent.transfer(request), time.monotonic() + 20
        while state not in ("DONE", "ERR") and time.monotonic() < end:
            state = self.agent.check_xfer_state(request)
        if state != "DONE":
            raise SystemExit(f"{what}: {state}")
        self.agent.release_xfer_handle(request)


vram.main(Agent)
