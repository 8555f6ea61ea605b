"""Python's clients through a gateway, each plain and streaming: `python clients.py NAME HOST:PORT`."""

import asyncio
import hashlib
import sys

GATEWAY = sys.argv[2]
URL = f"http://{GATEWAY}"
LARGE = b"0123456789abcdef" * (200 << 10)
PIECES = [LARGE[at : at + 50_000] for at in range(0, len(LARGE), 50_000)]
DIGEST = hashlib.sha256(LARGE).hexdigest()


def same_twice(first, second):
    """What two calls under one key have to come to: status, body, whether it is a replay."""
    assert first[:2] == second[:2] and first[0] == 201, (first, second)
    assert (first[2], second[2]) == (None, "true"), (first, second)


def httpx(http2):
    import httpx

    version = "HTTP/2" if http2 else "HTTP/1.1"
    with httpx.Client(http1=not http2, http2=http2, base_url=URL, timeout=30) as client:
        def call():
            answer = client.post("/guarded/charges", json={"amount": 5}, headers={"Idempotency-Key": version})
            assert answer.http_version == version and answer.headers.get_list("x-two") == ["b", "a"], answer.headers
            return answer.status_code, answer.content, answer.headers.get("idempotent-replayed")

        same_twice(call(), call())
        assert client.get("/open/a%2Fb?x=%20").json()["path"] == "/open/a%2Fb?x=%20"
        for path in ["/open/upload", "/guarded/upload"]:
            assert client.post(path, content=iter(PIECES)).json()["sha256"] == DIGEST
            assert client.put(path, content=LARGE).json()["sha256"] == DIGEST
        for method, path in [("GET", "/open/events"), ("POST", "/open/events"), ("POST", "/guarded/events")]:
            name = f"{version}-{method}-{path}"
            with client.stream(method, path, params={"name": name}) as answer:
                for number, line in enumerate(line for line in answer.iter_lines() if line):
                    assert line == f"data: {number}", line
                    client.post("/open/more", params={"name": name})
                assert number == 2
        for content in [LARGE, iter(PIECES)]:
            refused = client.post("/small", content=content)
            assert (refused.status_code, refused.json()["code"]) == (413, "body-too-large"), refused.text


def aiohttp():
    import aiohttp

    async def story():
        async with aiohttp.ClientSession(URL) as session:
            async def call():
                headers = {"Idempotency-Key": "aiohttp"}
                async with session.post("/guarded/charges", json={"amount": 5}, headers=headers) as answer:
                    return answer.status, await answer.read(), answer.headers.get("idempotent-replayed")

            async def pieces():
                for piece in PIECES:
                    yield piece

            same_twice(await call(), await call())
            for path in ["/open/upload", "/guarded/upload"]:
                async with session.post(path, data=pieces(), expect100=True) as answer:
                    assert (await answer.json())["sha256"] == DIGEST
            for path in ["/open/events", "/guarded/events"]:
                async with session.post(path, params={"name": f"aiohttp-{path}"}) as answer:
                    number = 0
                    async for line in answer.content:
                        if line.strip():
                            assert line == b"data: %d\n" % number, line
                            number += 1
                            async with session.post("/open/more", params={"name": f"aiohttp-{path}"}):
                                pass
                    assert number == 3
            async with session.ws_connect("/open/chat") as socket:
                await socket.send_str("hello")
                assert (await socket.receive()).data == "heard hello"

    asyncio.run(story())


def websockets():
    from websockets.sync.client import connect

    with connect(f"ws://{GATEWAY}/open/chat", max_size=None) as socket:
        for round in range(3):
            socket.send(f"hello {round}")
            assert socket.recv() == f"heard hello {round}"
        socket.send(LARGE)
        assert socket.recv() == LARGE[::-1]
        socket.ping().wait(30)


def grpcio():
    import grpc

    with grpc.insecure_channel(GATEWAY) as channel:
        def call(key, message=b"charge"):
            method = channel.unary_unary("/Guarded/One")
            return method.with_call(message, metadata=[("idempotency-key", key)], timeout=30)

        (first, head), (second, again) = call("grpc-1"), call("grpc-1")
        assert first == second, (first, second)
        assert "idempotent-replayed" not in dict(head.initial_metadata())
        assert dict(again.initial_metadata())["idempotent-replayed"] == "true"
        for method in ["/Open/One", "/Guarded/One"]:
            try:
                channel.unary_unary(method)(b"fail", metadata=[("idempotency-key", method)], timeout=30)
                raise AssertionError("an error was no error")
            except grpc.RpcError as error:
                assert error.code() == grpc.StatusCode.FAILED_PRECONDITION, error
                assert error.details() == "not today: 100 %", error
                assert dict(error.trailing_metadata())["why"] == "so", error
        assert list(channel.unary_stream("/Open/Many")(b"n", timeout=30)) == [b"n 0", b"n 1", b"n 2"]
        assert channel.stream_unary("/Open/Collect")(iter([b"a", b"b"]), timeout=30) == b"a b"
        assert channel.unary_unary("/Open/One")(LARGE, timeout=30).startswith(LARGE)
        talk = iter(channel.stream_stream("/Open/Talk")(conversation(), timeout=30))
        for word in [b"a", b"b", b"c"]:
            assert next(talk) == b"heard " + word
            heard.put(word)


def conversation():
    """Says each word when the one before was answered."""
    for word in [b"a", b"b", b"c"]:
        yield word
        heard.get(timeout=30)


if __name__ == "__main__":
    import queue

    heard = queue.Queue()
    stories = {"httpx": lambda: httpx(False), "httpx-h2": lambda: httpx(True), "aiohttp": aiohttp}
    (stories | {"websockets": websockets, "grpcio": grpcio})[sys.argv[1]]()
