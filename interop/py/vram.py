"""Two processes that write and read each other's GPU memory, and compare every byte.

PROGRAM -p PORT ROUNDS [HOST], as a pair of servers and clients: the one without a host has the memory that the other one
works on. What an engine is, NIXL and Mooncake say."""
import ctypes, hashlib, json, socket, sys

cuda = ctypes.CDLL("libcuda.so.1")
u64, size = ctypes.c_uint64, ctypes.c_size_t
cuda.cuMemcpyHtoD_v2.argtypes = [u64, ctypes.c_char_p, size]
cuda.cuMemcpyDtoH_v2.argtypes = [ctypes.c_char_p, u64, size]

SIZE = 1 << 20


def check(code):
    if code != 0:
        raise SystemExit(f"CUDA error {code}")


def start():
    context = ctypes.c_void_p()
    check(cuda.cuInit(0))
    check(cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0))
    check(cuda.cuCtxSetCurrent(context))


def allocate():
    at = u64()
    check(cuda.cuMemAlloc_v2(ctypes.byref(at), size(SIZE)))
    return at.value


def fill(at, words):
    check(cuda.cuMemcpyHtoD_v2(at, content(words), SIZE))


def compare(at, words):
    back = ctypes.create_string_buffer(SIZE)
    check(cuda.cuMemcpyDtoH_v2(back, at, SIZE))
    wanted = content(words)
    if back.raw != wanted:
        wrong = [i for i in range(SIZE) if back.raw[i] != wanted[i]]
        raise SystemExit(f"{words}: {len(wrong)} bytes are wrong, the first at {wrong[0]:#x}")


def content(words):
    """Bytes that are unique to this place and this round."""
    return hashlib.shake_128(words.encode()).digest(SIZE)


def serve(make, port):
    listener = socket.create_server(("", port))
    connection, _ = listener.accept()
    lines = connection.makefile("rw")
    memory = allocate()
    engine = make(connection.getsockname()[0], memory)
    tell(lines, [engine.about(), memory])
    for line in lines:
        number = json.loads(line)
        compare(memory, f"written {number}")
        fill(memory, f"read {number}")
        tell(lines, number)


def use(make, port, rounds, host):
    connection = socket.create_connection((host, port))
    lines = connection.makefile("rw")
    memory = allocate()
    engine = make(connection.getsockname()[0], memory)
    about, there = json.loads(lines.readline())
    engine.connect(about)
    for number in range(rounds):
        fill(memory, f"written {number}")
        engine.write(memory, there)
        tell(lines, number)
        if not lines.readline():
            raise SystemExit(f"the other side ended in round {number}")
        engine.read(memory, there)
        compare(memory, f"read {number}")


def tell(lines, what):
    print(json.dumps(what), file=lines, flush=True)


def main(make):
    port, rounds, host = int(sys.argv[2]), int(sys.argv[3]), sys.argv[4:]
    start()
    if host:
        use(make, port, rounds, host[0])
        print(f"{rounds} rounds, all bytes right", flush=True)
    else:
        serve(make, port)
