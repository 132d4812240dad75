"""Processes of Python's multiprocessing that all use verbs, through Debian's pyverbs.

argv[1] is the start method: fork, spawn or forkserver. Prints "ok" when parent and children moved their bytes.
"""

import multiprocessing
import sys

from pyverbs.addr import AHAttr, GlobalRoute
from pyverbs.cq import CQ
from pyverbs.device import Context, get_device_list
from pyverbs.enums import (
    IBV_ACCESS_LOCAL_WRITE,
    IBV_ACCESS_REMOTE_WRITE,
    IBV_MTU_1024,
    IBV_QPT_RC,
    IBV_SEND_SIGNALED,
    IBV_WC_SUCCESS,
    IBV_WR_RDMA_WRITE,
)
from pyverbs.mr import MR
from pyverbs.pd import PD
from pyverbs.qp import QP, QPAttr, QPCap, QPInitAttr
from pyverbs.wr import SGE, SendWR

SIZE = 20000
ACCESS = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE


def connected(pd, cq, ctx):
    """Two RC queue pairs of this process, each in RTS, connected to each other."""
    cap = QPCap(max_send_wr=8, max_recv_wr=8)
    pair = [QP(pd, QPInitAttr(qp_type=IBV_QPT_RC, scq=cq, rcq=cq, cap=cap)) for _ in range(2)]
    for qp, peer in (pair, pair[::-1]):
        gid = GlobalRoute(dgid=ctx.query_gid(1, 0), sgid_index=0)
        attr = QPAttr(port_num=1)
        attr.qp_access_flags = ACCESS
        attr.ah_attr = AHAttr(gr=gid, is_global=1, port_num=1)
        attr.path_mtu = IBV_MTU_1024
        attr.dest_qp_num = peer.qp_num
        attr.timeout, attr.retry_cnt, attr.rnr_retry = 14, 7, 7
        attr.max_rd_atomic = attr.max_dest_rd_atomic = 1
        attr.min_rnr_timer = 12
        qp.to_rts(attr)
    return pair


def work(seed):
    """Writes SIZE bytes to itself over RC and compares them."""
    name = get_device_list()[0].name.decode()
    with Context(name=name) as ctx, PD(ctx) as pd, CQ(ctx, 16) as cq, MR(pd, 2 * SIZE, ACCESS) as mr:
        qps = connected(pd, cq, ctx)
        data = bytes((i * 7 + seed) % 256 for i in range(SIZE))
        mr.write(data, SIZE)
        wr = SendWR(opcode=IBV_WR_RDMA_WRITE, num_sge=1, sg=[SGE(mr.buf, SIZE, mr.lkey)], send_flags=IBV_SEND_SIGNALED)
        wr.set_wr_rdma(mr.rkey, mr.buf + SIZE)
        qps[0].post_send(wr)
        polled, wcs = 0, []
        while not polled:
            polled, wcs = cq.poll(1)
        same = wcs[0].status == IBV_WC_SUCCESS and mr.read(SIZE, SIZE) == data
        for qp in qps:
            qp.close()
        return same


def main():
    method = sys.argv[1]
    assert work(1), "the parent, before"
    with multiprocessing.get_context(method).Pool(3) as pool:
        assert all(pool.map(work, range(6))), "a child"
    assert work(2), "the parent, after"
    print("ok")


if __name__ == "__main__":
    main()
