"""A server on this machine that speaks OpenAI's protocol and gives scripted answers."""

from __future__ import annotations

import json
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class ChatServer:
    """It gives its answers in their order, and the last one again and again.

    An answer is a text, an HTTP status of an error, a number of seconds to wait, or an error with its text, such as
    `(401, "who are you?")`.

    Attributes:
        requests: bodies of the requests, with the `path`. keys: their headers `Authorization`.
    """

    def __init__(self, *answers: str | int | float | tuple[int, str]) -> None:
        self.answers, self.requests, self.keys = list(answers), [], []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["content-length"])))
                outer.requests.append(body | {"path": self.path})
                outer.keys.append(self.headers["authorization"])
                answer = outer.answers.pop(0) if len(outer.answers) > 1 else outer.answers[0]
                if isinstance(answer, float):
                    time.sleep(answer)
                    answer = "late"
                self.reply(answer)

            def reply(self, answer: Any) -> None:
                if isinstance(answer, str):
                    status, whole = 200, completion(answer)
                else:
                    status, said = answer if isinstance(answer, tuple) else (answer, "broken")
                    whole = {"error": {"message": said}}
                data = json.dumps(whole).encode()
                try:
                    self.send_response(status)
                    self.send_header("content-type", "application/json")
                    self.send_header("content-length", str(len(data)))
                    self.end_headers()
                    self.wfile.write(data)
                except OSError:
                    pass  # who asked has given up

            def log_message(self, *_: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.01,), daemon=True)

    def __enter__(self) -> ChatServer:
        self.thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.server.shutdown()
        self.server.server_close()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server.server_port}/v1"


def completion(text: str) -> dict[str, Any]:
    """The body of an answer of seven tokens."""
    message = {"role": "assistant", "content": text}
    return {
        "id": "1",
        "object": "chat.completion",
        "created": 0,
        "model": "m",
        "choices": [{"index": 0, "finish_reason": "stop", "message": message}],
        "usage": {"prompt_tokens": 1, "completion_tokens": 7, "total_tokens": 8},
    }
