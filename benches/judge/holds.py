"""Attacks of a few connections that try to hold a proxy, and the upstream server they need.

Each attack is a function of a port. It returns when the proxy has closed the connection, or after
PATIENCE_S, and returns what the client has received. The limits are those of the judge.
"""

import contextlib
import select
import socket
import struct
import threading
import time

PATIENCE_S = 30
CHUNK = b"x" * 1024
UPLOADED = b"x" * 8192

# --- the upstream server ------------------------------------------------------------------------


class Upstream:
    """A server that stalls where its path says so. Each of its connections has a thread."""

    def __init__(self):
        self.listener = socket.create_server(("127.0.0.1", 0), backlog=4096)
        self.port = self.listener.getsockname()[1]
        self.lock, self.open, self.most = threading.Lock(), 0, 0
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        threading.stack_size(256 * 1024)
        while True:
            with contextlib.suppress(OSError):
                connection, _ = self.listener.accept()
                threading.Thread(target=self.serve, args=[connection], daemon=True).start()

    def serve(self, connection):
        with self.lock:
            self.open += 1
            self.most = max(self.most, self.open)
        with contextlib.suppress(OSError, ValueError), connection:
            while self.answer(connection):
                pass
        with self.lock:
            self.open -= 1

    def answer(self, connection):
        head = b""
        while b"\r\n\r\n" not in head:
            received = connection.recv(65536)
            if not received:
                return False
            head += received
        head, _, body = head.partition(b"\r\n\r\n")
        path = head.split(b" ")[1]
        if path == b"/late":
            time.sleep(1)
        if path == b"/unread":
            return self.wait_for_end(connection, reads=False)
        stalls = {
            b"/stall-head": b"HTTP/1.1 200 OK\r\nContent-",
            b"/stall-body": b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nabc",
            b"/stall-chunk": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n9\r\nabc",
            b"/stall-trailers":
                b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\nX: ",
        }
        if path in stalls:
            connection.sendall(stalls[path])
            return self.wait_for_end(connection, reads=True)
        length = [line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")]
        left = int(length[0].split(b":")[1]) - len(body) if length else 0
        while left > 0:
            received = connection.recv(65536)
            if not received:
                return False
            left -= len(received)
        if b"transfer-encoding: chunked" in head.lower():
            while not body.endswith(b"0\r\n\r\n"):
                received = connection.recv(65536)
                if not received:
                    return False
                body = body[-4:] + received
        if path == b"/some":
            connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 40000\r\n\r\n" + b"x" * 40_000)
            return True
        if path == b"/big":
            connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 100000000\r\n\r\n")
            for _ in range(100):
                connection.sendall(b"x" * 1_000_000)
            return True
        connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
        return True

    def wait_for_end(self, connection, reads):
        """Waits until the proxy closes or resets the connection."""
        poll = select.poll()
        poll.register(connection, select.POLLRDHUP | (select.POLLIN if reads else 0))
        while True:
            ready = poll.poll(1000)
            if ready and not (reads and ready[0][1] == select.POLLIN and connection.recv(65536)):
                return False


# --- clients of HTTP/1 --------------------------------------------------------------------------


class Client:
    """A client that notes what it receives, without waiting for it."""

    def __init__(self, port, received_buffer=None):
        self.socket = socket.socket()
        if received_buffer:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, received_buffer)
        self.socket.connect(("127.0.0.1", port))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket.setblocking(False)
        self.start, self.received, self.ended = time.monotonic(), b"", None

    def send(self, data):
        """Sends what the socket takes. False if the connection has ended."""
        with contextlib.suppress(BlockingIOError):
            try:
                self.socket.send(data)
            except OSError as error:
                if not isinstance(error, BlockingIOError):
                    self.look(0)
                    self.ended = self.ended or "RST"
        return self.ended is None

    def look(self, seconds):
        """Receives for a time. False if the connection has ended."""
        end = time.monotonic() + seconds
        while self.ended is None:
            left = end - time.monotonic()
            if not select.select([self.socket], [], [], max(0, left))[0]:
                break
            try:
                received = self.socket.recv(65536)
            except OSError:
                self.ended = "RST"
                break
            if not received:
                self.ended = "FIN"
                break
            self.received = (self.received + received)[-200_000:]
        return self.ended is None

    def has_time(self):
        return time.monotonic() - self.start < PATIENCE_S

    def every(self, seconds, data):
        """Sends the same again and again, until the proxy ends the connection."""
        while self.has_time() and self.send(data) and self.look(seconds):
            pass
        return self

    def wait(self):
        self.look(PATIENCE_S - (time.monotonic() - self.start))
        return self

    def said(self):
        """What the proxy has said, in a few words."""
        if self.received.startswith(b"HTTP/1.1 "):
            statuses = [self.received[9:12].decode()]
        else:
            statuses = frames_of(self.received)
        return " ".join(statuses + [self.ended or "open"])


def head_of(method, path, *fields):
    lines = [f"{method} {path} HTTP/1.1", "Host: proxy", *fields, "", ""]
    return "\r\n".join(lines).encode()


def unread_upload(port):
    """An upload to an upstream server that does not read."""
    client = Client(port)
    client.send(head_of("POST", "/unread", "Content-Length: 1000000000"))
    return client.every(0.01, CHUNK * 64)


def stalled_response(path, is_pipelined):
    def attack(port):
        client = Client(port)
        client.send(head_of("GET", path) * (2 if is_pipelined else 1))
        return client.wait()
    attack.__doc__ = f"GET {path}" + (", twice" if is_pipelined else "")
    return attack


def slow_body(port):
    """Nothing comes after the first bytes of a body."""
    client = Client(port)
    client.send(head_of("POST", "/", "Content-Length: 100") + b"abc")
    return client.wait()


def trickled_body(port):
    """A byte of a body each half second."""
    client = Client(port)
    client.send(head_of("POST", "/", "Content-Length: 1000"))
    return client.every(0.5, b"x")


def trickled_head(port):
    """A byte of a head each half second."""
    client = Client(port)
    client.send(b"GET / HTTP/1.1\r\nHost: proxy\r\nX: ")
    return client.every(0.5, b"x")


def large_head(port):
    """A head of 1 MB."""
    client = Client(port)
    client.socket.setblocking(True)
    client.socket.settimeout(PATIENCE_S)
    with contextlib.suppress(OSError):
        client.socket.sendall(b"GET / HTTP/1.1\r\nHost: proxy\r\nX: " + b"x" * (1 << 20))
    client.socket.setblocking(False)
    return client.wait()


def pipelined_head(port):
    """A part of a second head comes before the first response has ended."""
    client = Client(port)
    client.send(head_of("GET", "/") + b"GET / HTTP/1.1\r\n")
    return client.wait()


def head_ahead(port):
    """A part of a second head comes while the upstream server works on the first."""
    client = Client(port)
    client.send(head_of("GET", "/late"))
    client.look(0.3)
    client.send(b"GET / HTTP/1.1\r\n")
    return client.wait()


def silent(port):
    """Nothing is sent."""
    return Client(port).wait()


def unread_response(port, path="/big"):
    """A response that the client does not read."""
    client = Client(port, 4096)
    client.send(head_of("GET", path))
    poll = select.poll()
    poll.register(client.socket, select.POLLRDHUP)
    ended = poll.poll(PATIENCE_S * 1000)
    client.ended = "cut" if ended else None
    return client


def unread_answer(port):
    """A response that the server's system accepts as a whole, and that the client does not read."""
    return unread_response(port, "/some")


# --- clients of HTTP/2 --------------------------------------------------------------------------

DATA, HEADERS, RST_STREAM, SETTINGS, PING, GOAWAY, WINDOW_UPDATE = 0, 1, 3, 4, 6, 7, 8
NAMES = {0: "DATA", 1: "HEADERS", 3: "RST_STREAM", 7: "GOAWAY"}
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"


def frame(kind, stream=0, payload=b"", flags=0):
    return struct.pack(">I", len(payload))[1:] + bytes([kind, flags]) + struct.pack(
        ">I", stream) + payload


def frames_of(received):
    """The kinds of the frames that end something."""
    kinds = []
    while len(received) >= 9:
        length = int.from_bytes(received[:3], "big")
        if received[3] in (RST_STREAM, GOAWAY) and NAMES[received[3]] not in kinds:
            kinds.append(NAMES[received[3]])
        received = received[9 + length:]
    return kinds


def http2_head(stream, path, has_body=False):
    path = path.encode()
    block = bytes([0x83 if has_body else 0x82, 0x86, 0x04, len(path)]) + path
    block += bytes([0x01, 5]) + b"proxy"
    return frame(HEADERS, stream, block, 4 | (0 if has_body else 1))


def http2(port, settings=b""):
    client = Client(port)
    client.send(PREFACE + frame(SETTINGS, payload=settings) + frame(SETTINGS, flags=1))
    return client


def slow_preface(port):
    """A byte of the preface every 1.5 s."""
    client = Client(port)
    for index in range(len(PREFACE)):
        if not (client.send(PREFACE[index:index + 1]) and client.look(1.5)):
            break
    return client.wait()


def control_frames(kind, payload):
    def attack(port):
        client = http2(port)
        client.send(http2_head(1, "/"))
        client.look(1)
        return client.every(1, frame(kind, payload=payload))
    attack.__doc__ = "A control frame each second, without a second request."
    return attack


STREAMS = 20


def closed_window(port):
    """Responses for which there is no window."""
    client = http2(port, struct.pack(">HI", 4, 0))
    for stream in range(STREAMS):
        client.send(http2_head(2 * stream + 1, "/big"))
    return client.wait()


def trickled_window(port):
    """A byte of window for each of several responses each second."""
    client = http2(port, struct.pack(">HI", 4, 0))
    streams = range(1, 2 * STREAMS, 2)
    for stream in streams:
        client.send(http2_head(stream, "/big"))
    one = struct.pack(">I", 1)
    return client.every(1, b"".join(frame(WINDOW_UPDATE, stream, one) for stream in streams))


def http2_upload(path, period):
    def attack(port):
        client = http2(port)
        client.send(http2_head(1, path, has_body=True) + frame(DATA, 1, b"abc"))
        while client.has_time() and client.look(0.2):
            if period and not client.send(frame(DATA, 1, b"x")):
                break
            if "RST_STREAM" in client.said() or "GOAWAY" in client.said():
                break
        return client
    attack.__doc__ = f"An upload to {path} that stalls, by HTTP/2."
    return attack


def http2_unread_upload(is_beside):
    def attack(port):
        client = http2(port)
        client.send(http2_head(1, "/unread", has_body=True))
        # Of the connection, and of the stream.
        windows, seen = [65_535, 65_535], b""
        judged = 1
        client.socket.setblocking(True)
        client.socket.settimeout(PATIENCE_S)
        with contextlib.suppress(OSError):
            while client.has_time():
                if min(windows) >= len(UPLOADED):
                    client.socket.sendall(frame(DATA, 1, UPLOADED))
                    windows = [window - len(UPLOADED) for window in windows]
                    continue
                if is_beside and judged == 1:
                    judged = 3
                    client.socket.sendall(http2_head(3, "/", has_body=True))
                received = client.socket.recv(65536)
                if not received:
                    break
                client.received += received
                seen += received
                ended = False
                while len(seen) >= 9 and len(seen) >= 9 + int.from_bytes(seen[:3], "big"):
                    length, kind = int.from_bytes(seen[:3], "big"), seen[3]
                    stream, payload = int.from_bytes(seen[5:9], "big"), seen[9:9 + length]
                    seen = seen[9 + length:]
                    ended |= kind == GOAWAY or kind == RST_STREAM and stream == judged
                    if kind == WINDOW_UPDATE:
                        windows[0 if stream == 0 else 1] += int.from_bytes(payload, "big")
                    for setting in range(0, length if kind == SETTINGS else 0, 6):
                        number, value = struct.unpack(">HI", payload[setting:setting + 6])
                        if number == 4:
                            windows[1] += value - 65_535
                if ended:
                    break
        client.socket.setblocking(False)
        return client
    attack.__doc__ = "An upload to an upstream server that does not read, as fast as the windows allow" + (
        ", and one beside it whose body does not begin." if is_beside else ".")
    return attack


def http2_stalled(path):
    def attack(port):
        client = http2(port)
        client.send(http2_head(1, path))
        while client.has_time() and client.look(0.2):
            if "RST_STREAM" in client.said() or "GOAWAY" in client.said():
                break
        return client
    attack.__doc__ = f"GET {path}, by HTTP/2."
    return attack


HTTP1 = {
    "silent": silent,
    "head, a byte each 0.5 s": trickled_head,
    "head of 1 MB": large_head,
    "body that stops": slow_body,
    "body, a byte each 0.5 s": trickled_body,
    "pipelined part of a head": pipelined_head,
    "part of a head during the response": head_ahead,
    "upload that the upstream server does not read": unread_upload,
    "response that the client does not read": unread_response,
    "response that is accepted, and not read": unread_answer,
    "upstream server stalls in the head": stalled_response("/stall-head", False),
    "upstream server stalls in the body": stalled_response("/stall-body", False),
    "upstream server stalls in a chunk": stalled_response("/stall-chunk", False),
    "upstream server stalls in the trailers": stalled_response("/stall-trailers", False),
    "upstream server stalls, pipelined": stalled_response("/stall-body", True),
}
HTTP2 = {
    "preface, a byte each 1.5 s": slow_preface,
    "only PING": control_frames(PING, b"12345678"),
    "only SETTINGS": control_frames(SETTINGS, b""),
    "only WINDOW_UPDATE": control_frames(WINDOW_UPDATE, struct.pack(">I", 1)),
    "window 0": closed_window,
    "window of a byte a second": trickled_window,
    "HTTP/2 body that stops": http2_upload("/", False),
    "HTTP/2 body, a byte each 0.2 s": http2_upload("/", True),
    "HTTP/2 upload that the upstream server does not read": http2_unread_upload(False),
    "HTTP/2 upload that holds the window, and a body that does not begin":
        http2_unread_upload(True),
    "HTTP/2, upstream server stalls": http2_stalled("/stall-body"),
}
ATTACKS = {**HTTP1, **HTTP2}


def run(name, port, count):
    """Runs an attack by several connections at once. Returns how each has ended, and the clients,
    which are still open."""
    clients = [None] * count
    def one(index):
        with contextlib.suppress(OSError):
            clients[index] = ATTACKS[name](port)
            clients[index].seconds = time.monotonic() - clients[index].start
    threads = [threading.Thread(target=one, args=[index]) for index in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [client for client in clients if client]
