import asyncio
B = b"x" * 65536
async def serve(r, w):
    try:
        while True:
            w.write(B); await w.drain()
    except Exception: pass
async def main():
    s = await asyncio.start_server(serve, "0.0.0.0", 9100, backlog=4096)
    await s.serve_forever()
import resource
try: resource.setrlimit(resource.RLIMIT_NOFILE, (65536, 65536))
except Exception as e: print(e)
asyncio.run(main())
