# opens N connections, asks each for a large answer, reads nothing; then holds
import asyncio, sys, socket, resource
n, host, port, size, hold = int(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), float(sys.argv[5])
try: resource.setrlimit(resource.RLIMIT_NOFILE, (65536, 65536))
except Exception as e: print("limit", e)
async def one(sem):
    async with sem:
        s = socket.socket(); s.setblocking(False)
        s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        l = asyncio.get_running_loop()
        try:
            await asyncio.wait_for(l.sock_connect(s, (host, port)), 20)
            await l.sock_sendall(s, f"GET /?size={size} HTTP/1.1\r\nHost: a\r\n\r\n".encode())
            return s
        except Exception as e:
            return e
async def main():
    sem = asyncio.Semaphore(200)
    got = await asyncio.gather(*[one(sem) for _ in range(n)])
    ok = [g for g in got if isinstance(g, socket.socket)]
    bad = {}
    for g in got:
        if not isinstance(g, socket.socket): bad[repr(g)[:80]] = bad.get(repr(g)[:80], 0) + 1
    print("open", len(ok), bad, flush=True)
    await asyncio.sleep(hold)
asyncio.run(main())
