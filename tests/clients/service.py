"""A service that says what it was sent, in HTTP/1.1, over a WebSocket and in gRPC."""

import asyncio
import hashlib
import json
from concurrent import futures

import grpc
from aiohttp import WSMsgType, web

calls = 0
go_on = {}


async def echo(request):
    global calls
    calls += 1
    digest, length = hashlib.sha256(), 0
    async for piece in request.content.iter_any():
        digest.update(piece)
        length += len(piece)
    told = {"method": request.method, "path": request.raw_path, "length": length, "sha256": digest.hexdigest()}
    return web.json_response(told | {"call": calls}, headers={"X-Two": "b", "x-two": "a"}, status=201)


async def events(request):
    """Each event is sent when its caller has asked for it: he must have read the one before."""
    name = request.query["name"]
    asked = go_on.setdefault(name, asyncio.Queue())
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    await response.prepare(request)
    for number in range(3):
        await response.write(f"data: {number}\n\n".encode())
        await asked.get()
    await response.write_eof()
    return response


async def more(request):
    go_on[request.query["name"]].put_nowait(None)
    return web.Response(text="ok")


async def chat(request):
    socket = web.WebSocketResponse()
    await socket.prepare(request)
    async for message in socket:
        if message.type == WSMsgType.TEXT:
            await socket.send_str(f"heard {message.data}")
        elif message.type == WSMsgType.BINARY:
            await socket.send_bytes(message.data[::-1])
    return socket


def one(request, context):
    global calls
    calls += 1
    if request == b"fail":
        context.set_trailing_metadata((("why", "so"),))
        context.abort(grpc.StatusCode.FAILED_PRECONDITION, "not today: 100 %")
    return request + b" %d" % calls


def many(request, context):
    yield from (request + b" %d" % number for number in range(3))


def collect(requests, context):
    return b" ".join(requests)


def talk(requests, context):
    yield from (b"heard " + request for request in requests)


def serve_grpc():
    methods = {
        "One": grpc.unary_unary_rpc_method_handler(one),
        "Many": grpc.unary_stream_rpc_method_handler(many),
        "Collect": grpc.stream_unary_rpc_method_handler(collect),
        "Talk": grpc.stream_stream_rpc_method_handler(talk),
    }
    server = grpc.server(futures.ThreadPoolExecutor(8))
    for name in ["Open", "Guarded"]:
        server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler(name, methods)])
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    return server, port


async def main():
    app = web.Application(client_max_size=1 << 30)
    app.router.add_get("/open/events", events)
    app.router.add_post("/open/events", events)
    app.router.add_post("/guarded/events", events)
    app.router.add_post("/open/more", more)
    app.router.add_get("/open/chat", chat)
    app.router.add_route("*", "/{rest:.*}", echo)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    server, grpc_port = serve_grpc()
    http_port = site._server.sockets[0].getsockname()[1]
    print(json.dumps({"http": f"127.0.0.1:{http_port}", "grpc": f"127.0.0.1:{grpc_port}"}), flush=True)
    await asyncio.Event().wait()


asyncio.run(main())
