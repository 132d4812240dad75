"""Sends packets that no honest peer sends to victim.c in another network namespace.

argv: the R_Key and the address of the victim's region, and its QPNs. Every packet is made here, its ICRC by zlib. After
each forgery the same QP has to carry a message as if nothing had been: its acknowledgement is also the proof that the forgery
was not answered, as answers come in order. Prints "NAME COUNT" for what the victim's counters must have seen.
"""

import collections
import random
import socket
import struct
import sys
import time
import zlib

ME, VICTIM, STRANGER, OTHER = "10.77.0.2", "10.77.0.1", "10.77.0.3", "10.78.0.1"
PORT = 4791
SEND_FIRST, SEND_MIDDLE, SEND_ONLY, WRITE_FIRST, WRITE_ONLY, READ = 0x00, 0x01, 0x04, 0x06, 0x0A, 0x0C
READ_RESPONSE_ONLY, ACK, ATOMIC_ACK, FETCH_ADD = 0x10, 0x11, 0x12, 0x14
UC_SEND_ONLY, UD_SEND_ONLY, SACK = 0x24, 0x64, 0xE0
# Syndromes (IBA table 45).
SEQUENCE, INVALID, ACCESS, RNR = 0x60, 0x61, 0x62, 0x20
RKEY, ADDRESS, *QPS = map(int, sys.argv[1:])
expected = collections.Counter()


def opened(address):
    s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    s.setsockopt(socket.IPPROTO_IP, 10, 2)  # IP_MTU_DISCOVER, IP_PMTUDISC_DO: DF, and identification 0
    s.bind((address, PORT))
    s.settimeout(20)
    return s


mine, strangers = opened(ME), opened(STRANGER)


def bth(opcode, qpn, psn, pkey=0xFFFF, flags=0x00, ask=True):
    return struct.pack(">BBHII", opcode, flags, pkey, qpn, ask << 31 | psn)


def reth(length, rkey=RKEY, address=ADDRESS):
    return struct.pack(">QII", address, rkey, length)


def with_icrc(packet, src=ME, dst=VICTIM, identification=0):
    length = 8 + len(packet) + 4
    head = b"\xff" * 8 + struct.pack(">BBHHHBBH", 0x45, 0xFF, 20 + length, identification, 0x4000, 0xFF, 17, 0xFFFF)
    head += socket.inet_aton(src) + socket.inet_aton(dst) + struct.pack(">HHHH", PORT, PORT, length, 0xFFFF)
    masked = bytearray(packet)
    if len(masked) > 4:
        masked[4] = 0xFF
    return packet + struct.pack("<I", zlib.crc32(head + bytes(masked)))


def raw(datagram, s=mine, dst=VICTIM):
    s.sendto(datagram, (dst, PORT))


def forge(packet):
    raw(with_icrc(packet))


class Qp:
    def __init__(self, index):
        self.qpn, self.own, self.psn = QPS[index], 0x1000 + index, 100

    def bth(self, opcode, psn=None, **how):
        return bth(opcode, self.qpn, self.psn if psn is None else psn, **how)

    def answer(self):
        """The opcode, sequence number and syndrome of the next packet of the victim; it must be for this QP."""
        packet = mine.recv(9000)
        opcode, _, _, qpn, psn = struct.unpack(">BBHII", packet[:12])
        # Answers that were sent as one batch are numbered from 0, and a socket does not show their
        # numbers.
        assert any(with_icrc(packet[:-4], VICTIM, ME, n) == packet for n in range(64)), "ICRC"
        assert qpn & 0xFFFFFF == self.own, f"for QP {qpn:#x}, not {self.own:#x}"
        return opcode, psn & 0xFFFFFF, packet[12]

    def acked(self, psn):
        opcode, at, syndrome = self.answer()
        assert (opcode, at) == (ACK, psn) and syndrome >> 5 == 0, (opcode, at, syndrome, psn)

    def refused(self, syndrome, psn=None):
        answer = self.answer()
        assert answer == (ACK, self.psn if psn is None else psn, syndrome), (answer, syndrome)

    def carries(self, text=b"all well"):
        """Sends a message, again while the victim has no receive for it yet, as a requester does."""
        answer = (ACK, self.psn, RNR)
        for _ in range(100):
            forge(self.bth(SEND_ONLY) + text)
            answer = self.answer()
            if answer[2] >> 5 != RNR >> 5:
                break
            time.sleep(0.02)
        opcode, at, syndrome = answer
        assert (opcode, at) == (ACK, self.psn) and syndrome >> 5 == 0, (answer, self.psn)
        self.psn += 1


qp = Qp(0)
qp.carries()


def dropped(counter, *datagrams, s=mine, dst=VICTIM):
    for datagram in datagrams:
        raw(datagram, s, dst)
    expected[counter] += len(datagrams)
    qp.carries()


def fresh():
    """A packet that would be accepted if nothing were wrong with it."""
    return qp.bth(SEND_ONLY) + b"forged!!"


# No such QP: a QPN of this process, of no process, and QP 0, which RoCE does not have.
dropped("rx_unknown_qpn", *[with_icrc(bth(SEND_ONLY, n, 1)) for n in (qp.qpn ^ 0x2000, 900 << 14 | 77, 0)])
# QP 1 takes only management datagrams. The multicast QPN is invalid at a host's own address (IBA
# 9.6.1.3.1).
dropped("rx_malformed_packets", with_icrc(bth(SEND_ONLY, 1, 1)))
dropped("rx_wrong_destination", with_icrc(bth(SEND_ONLY, 0xFFFFFF, 1)))
# The ICRC is wrong, or is computed for other addresses.
good = with_icrc(fresh())
dropped("rx_icrc_encapsulated", good[:-1] + bytes([good[-1] ^ 1]), good[:20] + b"X" + good[21:], with_icrc(fresh(), STRANGER))
# Truncated at every length; with fewer bytes than an ICRC there is not even an ICRC.
good = with_icrc(fresh())
dropped("rx_icrc_encapsulated", *[good[:n] for n in range(4, len(good))])
dropped("rx_malformed_packets", *[good[:n] for n in range(4)])
# The ICRC is correct, but the packet makes no sense: no such opcode; a later transport version;
# more padding than payload; no
# room for the headers that the opcode announces; nothing.
dropped("rx_malformed_packets", with_icrc(qp.bth(0x1F) + b"12345678"))
dropped("rx_malformed_packets", with_icrc(qp.bth(SEND_ONLY, flags=0x01) + b"12345678"))
dropped("rx_malformed_packets", with_icrc(qp.bth(SEND_ONLY, flags=0x30)))
dropped("rx_malformed_packets", with_icrc(qp.bth(WRITE_ONLY) + reth(0)[:15]))
dropped("rx_malformed_packets", with_icrc(b""))
# Another partition; a limited member of ours is welcome.
dropped("pkey_violation", with_icrc(qp.bth(SEND_ONLY, pkey=0x8001) + b"forged!!"))
forge(qp.bth(SEND_ONLY, pkey=0x7FFF) + b"limited.")
qp.acked(qp.psn)
qp.psn += 1
# A host other than the QP's peer; an address of the victim's host that does not belong to its port.
dropped("rx_wrong_source", with_icrc(fresh(), STRANGER), s=strangers)
dropped("rx_wrong_destination", with_icrc(fresh(), ME, OTHER), dst=OTHER)
# Another transport, and answers to what was never asked.
aeth = struct.pack(">I", 1)
dropped("dropped_packets", with_icrc(qp.bth(UC_SEND_ONLY) + b"12345678"))
dropped("dropped_packets", with_icrc(qp.bth(UD_SEND_ONLY) + bytes(8) + b"12345678"))
for psn in (499, 500, 501, 7):
    dropped("dropped_packets", with_icrc(qp.bth(ACK, psn) + aeth))
    dropped("dropped_packets", with_icrc(qp.bth(ACK, psn) + struct.pack(">I", ACCESS << 24)))
    dropped("dropped_packets", with_icrc(qp.bth(READ_RESPONSE_ONLY, psn) + aeth + b"12345678"))
    dropped("dropped_packets", with_icrc(qp.bth(ATOMIC_ACK, psn) + aeth + bytes(8)))
# Replayed: acknowledged again with the newest number, not carried out again.
forge(qp.bth(SEND_ONLY, 100) + b"all well")
qp.acked(qp.psn - 1)
expected["duplicate_request"] += 1
qp.carries()
# PSNs further ahead of the expected one than anything is kept: NAKed once, then dropped silently until the expected one
# arrives.
for ahead in (1024, 5000, 1 << 22):
    forge(qp.bth(SEND_ONLY, qp.psn + ahead) + b"too soon")
qp.refused(SEQUENCE)
expected["out_of_sequence"] += 1
qp.carries()
# A little ahead: reported, NAKed, kept, and carried out when its turn has come.
time.sleep(0.1)
forge(qp.bth(SEND_ONLY, qp.psn + 1) + b"kept....")
assert qp.answer()[:2] == (SACK, qp.psn)
qp.refused(SEQUENCE)
expected["out_of_sequence"] += 1
forge(qp.bth(SEND_ONLY) + b"all well")
qp.acked(qp.psn + 1)
qp.psn += 2
qp.carries()
# Noise with a correct ICRC, which any sender can compute, so that it reaches the parser.
noise = random.Random(4791)
for _ in range(5000):
    head = bth(noise.randrange(256), noise.choice([qp.qpn, noise.getrandbits(24)]), noise.getrandbits(24))
    raw(with_icrc(head + noise.randbytes(noise.randrange(64)), STRANGER), strangers)
qp.carries()
# The same READ repeatedly: no more answers are queued than the QP has resources for.
for _ in range(64):
    forge(qp.bth(READ) + reth(8))
expected["duplicate_request"] += 63
qp.psn += 1
forge(qp.bth(SEND_ONLY) + b"all well")
while (answer := qp.answer())[0] == READ_RESPONSE_ONLY:
    assert answer[1] == qp.psn - 1, answer
assert answer[:2] == (ACK, qp.psn), answer
qp.psn += 1


def fatal(index, syndrome, counter, packet):
    """A request that the rules answer with a NAK, after which the QP is in error and silent."""
    broken = Qp(index)
    broken.carries()
    forge(packet(broken))
    broken.refused(syndrome)
    if counter:
        expected[counter] += 1
    forge(broken.bth(SEND_ONLY) + b"12345678")
    expected["dropped_packets"] += 1
    qp.carries()


access, invalid = "resp_remote_access_errors", "resp_remote_invalid_request"
fatal(1, ACCESS, access, lambda q: q.bth(WRITE_ONLY) + reth(8, rkey=RKEY ^ 0x100) + b"12345678")
# Wrong lengths: beyond the region, wrapping around the address space, less than the payload, longer
# than a message may be.
fatal(2, ACCESS, access, lambda q: q.bth(WRITE_ONLY) + reth(8, address=ADDRESS + 4092) + b"12345678")
fatal(3, ACCESS, access, lambda q: q.bth(READ) + reth(4096, address=2**64 - 8))
fatal(4, INVALID, invalid, lambda q: q.bth(WRITE_ONLY) + reth(8) + b"1234567812345678")
fatal(5, INVALID, invalid, lambda q: q.bth(READ) + reth(0x80000004))
fatal(6, INVALID, invalid, lambda q: q.bth(WRITE_FIRST) + reth(4096) + b"short of an MTU.")
# Longer than its receive; a Middle packet without a First; an atomic across two words.
fatal(7, INVALID, "resp_local_length_error", lambda q: q.bth(SEND_ONLY) + bytes(68))
fatal(8, INVALID, invalid, lambda q: q.bth(SEND_MIDDLE) + bytes(1024))
fatal(9, INVALID, invalid, lambda q: q.bth(FETCH_ADD) + struct.pack(">QIQQ", ADDRESS + 4, RKEY, 1, 0))
qp.carries(b"quit....")
for counter, count in expected.items():
    print(counter, count)
