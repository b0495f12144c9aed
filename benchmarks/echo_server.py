"""A bare HTTP echo, as fast as the library we serve with can: the reference of a lone client."""

import sys

import uvicorn


async def echo(_scope, receive, send):
    body = (await receive())["body"]
    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body})


if __name__ == "__main__":
    uvicorn.run(
        echo,
        host="127.0.0.1",
        port=int(sys.argv[sys.argv.index("--port") + 1]),
        loop="uvloop",
        http="httptools",
        lifespan="off",
        log_level="warning",
        access_log=False,
    )
