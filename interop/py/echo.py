"""asyncio servers and clients: many connections at once, each half-closed when its data is sent.

    echo.py server HOST PORT
    echo.py client HOST PORT
"""

import asyncio
import sys

CONNECTIONS = 8
BYTES = 300_000


async def echo(reader, writer):
    while data := await reader.read(65536):
        writer.write(data)
        await writer.drain()
    writer.close()


async def server(host, port):
    server = await asyncio.start_server(echo, host, port)
    async with server:
        await server.serve_forever()


async def connection(host, port, number):
    reader, writer = await asyncio.open_connection(host, port)
    data = bytes([number]) * BYTES

    async def send():
        writer.write(data)
        await writer.drain()
        writer.write_eof()

    sending = asyncio.create_task(send())
    received = await reader.read(-1)
    await sending
    assert received == data, f"{len(received)} bytes came back, of {len(data)}"
    writer.close()


async def client(host, port):
    await asyncio.gather(*(connection(host, port, number) for number in range(CONNECTIONS)))
    print("ok")


role, host, port = sys.argv[1:]
asyncio.run({"server": server, "client": client}[role](host, int(port)))
