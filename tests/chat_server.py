"""A server on this machine that speaks OpenAI's and Anthropic's protocol and gives scripted answers."""

from __future__ import annotations

import json
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class ChatServer:
    """It gives its answers in their order, and the last one again and again.

    An answer is a text, an HTTP status of an error, a number of seconds to wait, an error with its text, such as
    `(401, "who are you?")`, and perhaps with headers, or a whole body. A text answers in the protocol of the path.

    Attributes:
        requests: bodies of the requests, with the `path`. keys: their headers `Authorization` or `x-api-key`.
    """

    def __init__(self, *answers: str | int | float | tuple[Any, ...] | dict[str, Any]) -> None:
        self.answers, self.requests, self.keys = list(answers), [], []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["content-length"])))
                outer.requests.append(body | {"path": self.path})
                outer.keys.append(self.headers["authorization"] or self.headers["x-api-key"])
                answer = outer.answers.pop(0) if len(outer.answers) > 1 else outer.answers[0]
                if isinstance(answer, float):
                    time.sleep(answer)
                    answer = "late"
                self.reply(answer)

            def reply(self, answer: Any) -> None:
                headers: dict[str, str] = {}
                if isinstance(answer, dict):
                    status, whole = 200, answer
                elif isinstance(answer, str):
                    whole = anthropic_message(answer) if self.path.endswith("/messages") else completion(answer)
                    status = 200
                else:
                    status, said, *rest = answer if isinstance(answer, tuple) else (answer, "broken")
                    whole = {"error": {"message": said}}
                    headers = rest[0] if rest else {}
                data = json.dumps(whole).encode()
                try:
                    self.send_response(status)
                    self.send_header("content-type", "application/json")
                    self.send_header("content-length", str(len(data)))
                    for name, value in headers.items():
                        self.send_header(name, value)
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


def completion(text: str | None, *calls: tuple[str, str, str]) -> dict[str, Any]:
    """The body of an answer of seven tokens in OpenAI's protocol. `calls`: an id, a name and arguments each."""
    message: dict[str, Any] = {"role": "assistant", "content": text}
    if calls:
        message["tool_calls"] = [
            {"id": number, "type": "function", "function": {"name": name, "arguments": arguments}}
            for number, name, arguments in calls
        ]
    return {
        "id": "1",
        "object": "chat.completion",
        "created": 0,
        "model": "m",
        "choices": [{"index": 0, "finish_reason": "stop", "message": message}],
        "usage": {"prompt_tokens": 1, "completion_tokens": 7, "total_tokens": 8},
    }


def anthropic_message(text: str, *calls: tuple[str, str, dict[str, Any]], stop: str = "end_turn") -> dict[str, Any]:
    """The body of an answer of seven tokens in Anthropic's protocol."""
    blocks = [{"type": "text", "text": text}] if text else []
    used = [{"type": "tool_use", "id": number, "name": name, "input": given} for number, name, given in calls]
    return {
        "id": "1",
        "type": "message",
        "role": "assistant",
        "model": "m",
        "content": [*blocks, *used],
        "stop_reason": "tool_use" if calls else stop,
        "stop_sequence": None,
        "usage": {"input_tokens": 1, "output_tokens": 7},
    }
