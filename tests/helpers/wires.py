"""A network cable for tests: a TCP port in front of another that can be cut and mended."""

from __future__ import annotations

import contextlib
import socket
import threading
from types import TracebackType


class Wire:
    """Passes everything on to a port of this host.

    A silent cut is that of a cable: nothing arrives, nobody is told, and what was on its way arrives once it is mended.
    The other kind is that of a router that dies: connections are reset, and new ones too.
    """

    def __init__(self, target_port: int) -> None:
        self._target = ("127.0.0.1", target_port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        self._lock = threading.Lock()
        self._sockets: set[socket.socket] = set()
        self._whole = threading.Event()
        self._whole.set()
        self._is_refusing = False
        self._threads: list[threading.Thread] = []
        self._start(self._accept)

    def cut(self, *, is_silent: bool) -> None:
        if is_silent:
            self._whole.clear()
        else:
            self._is_refusing = True
            self._reset()

    def mend(self) -> None:
        self._is_refusing = False
        self._whole.set()

    def __enter__(self) -> Wire:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.cut(is_silent=False)
        self._whole.set()
        for thread in list(self._threads):
            thread.join()

    def _start(self, run: object, *args: object) -> None:
        thread = threading.Thread(target=run, args=args, daemon=True)  # type: ignore[arg-type]
        self._threads.append(thread)
        thread.start()

    def _reset(self) -> None:
        with self._lock:
            for opened in self._sockets:
                with contextlib.suppress(OSError):
                    opened.shutdown(socket.SHUT_RDWR)

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                inner = self._listener.accept()[0]
                try:
                    outer = socket.create_connection(self._target)
                except OSError:
                    inner.close()
                    continue
                with self._lock:
                    self._sockets |= {inner, outer}
                if self._is_refusing:
                    self._reset()
                self._start(self._pump, inner, outer)
                self._start(self._pump, outer, inner)

    def _pump(self, source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                self._whole.wait()
                target.sendall(data)
        for end in (source, target):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
        with self._lock:
            self._sockets.discard(source)
        source.close()
