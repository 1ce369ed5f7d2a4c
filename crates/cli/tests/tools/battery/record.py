"""The record of calls: one line for each call and its caller.

A text in capitals is flags. `@name` is a descriptor that an earlier call opened, or -1 if that
call failed. So every run makes the same calls, independent of the answers.
"""

from __future__ import annotations

import errno
import os
import pickle
import re
import select
import signal
import struct
import time
from typing import Any, TextIO

from system import CALLS, number

CAPITALS = re.compile(r"[A-Z][A-Z0-9_]*(\|[A-Z][A-Z0-9_]*)*")
# Calls that return a descriptor.
OPENS = ("open", "openat", "openat2", "dup", "reopen", "inotify")
# The argument of a call that is shown in octal.
OCTAL = {
    "open": 2,
    "openat": 3,
    "openat2": 2,
    "mkdir": 1,
    "mkdirat": 2,
    "chmod": 1,
    "fchmod": 1,
    "umask": 0,
}
OCTAL |= {"mkfifo": 1, "mknod": 1, "fchmodat": 1}
# Time limit of a call.
HANG_SECONDS = 60
# Of two names of one number, the name in the manuals.
ERRORS = {
    **errno.errorcode,
    errno.EOPNOTSUPP: "EOPNOTSUPP",
    errno.EDEADLK: "EDEADLK",
    errno.EAGAIN: "EAGAIN",
}


class Hang(Exception):
    """A call was not answered."""


def hang(_signal: int, _frame: Any) -> None:
    """Ends a hanging call."""
    raise Hang


def shown(value: Any, is_octal: bool = False) -> str:
    """An argument."""
    if isinstance(value, (bool, float)) or value is None:
        return str(value)
    if isinstance(value, int):
        return f"{value:04o}" if is_octal else str(value)
    if isinstance(value, str):
        if CAPITALS.fullmatch(value) or value.startswith("@"):
            return value
        text = ascii(os.fsencode(value))[2:-1]
        return f'"{text}"' if len(text) < 40 else f'"{text[:8]}.."[{len(text)}]'
    if isinstance(value, bytes):
        return ascii(value)[1:] if len(value) < 40 else f"{ascii(value[:8])[1:]}..[{len(value)}]"
    if isinstance(value, (tuple, list)):
        return f"({' '.join(shown(it) for it in value)})"
    raise TypeError(value)


def written(name: str, args: tuple[Any, ...], to: str | None) -> str:
    """A call as the record shows it."""
    if len(args) > 100:
        args = (args[0], f"{len(args) - 1} buffers")
    given = ", ".join(shown(it, OCTAL.get(name) == n) for n, it in enumerate(args))
    return f"{name}({given})" + (f" as {to}" if to else "")


class Actor:
    """A process that makes calls, with its open descriptors."""

    def __init__(self) -> None:
        """No descriptors yet."""
        self.fds: dict[str, int] = {}

    def given(self, value: Any) -> Any:
        """An argument in the form that the call takes."""
        if isinstance(value, tuple):
            return tuple(self.given(it) for it in value)
        if not isinstance(value, str):
            return value
        if value.startswith("@"):
            return self.fds[value[1:]]
        return number(value) if CAPITALS.fullmatch(value) else value

    def act(self, name: str, args: tuple[Any, ...], to: str | None) -> str:
        """Makes a call and returns its answer as text."""
        if name == "close" and isinstance(args[0], str):
            fd = self.fds.pop(args[0][1:])
            args = (fd,)
        given = tuple(self.given(it) for it in args)
        signal.alarm(HANG_SECONDS)
        try:
            answer = CALLS[name](*given)
        except OSError as error:
            answer = ERRORS.get(error.errno or 0, str(error.errno))
            fd = -1
        except ValueError as error:
            # Python itself checks some arguments.
            answer, fd = f"refused ({error})", -1
        except Hang:
            answer, fd = "hangs", -1
        else:
            fd = answer if name in OPENS else -1
            answer = "ok" if name in OPENS or answer is None else answer
        finally:
            signal.alarm(0)
        if to:
            self.fds[to] = fd
        elif fd >= 0:
            os.close(fd)
        return "''" if answer == "" else str(answer)

    def close(self) -> None:
        """Closes all descriptors."""
        for fd in self.fds.values():
            if fd >= 0:
                os.close(fd)
        self.fds.clear()


class Peer:
    """Another process that makes calls on request."""

    def __init__(self, ids: tuple[int, int, list[int]] | None) -> None:
        """Starts it in the current folder, as another user if ids are given."""
        here, there = os.pipe(), os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            try:
                # Inherited descriptors would stay open, and locked, for the life of this process.
                orders, answers = (
                    os.dup2(fd, place) for fd, place in ((here[0], 998), (there[1], 999))
                )
                os.closerange(3, 998)
                if ids:
                    CALLS["user"](*ids)
                self.serve(orders, answers)
            finally:
                os._exit(1)
        os.close(here[0])
        os.close(there[1])
        self.orders, self.answers = here[1], there[0]

    @staticmethod
    def serve(orders: int, answers: int) -> None:
        """Makes calls until the other side closes."""
        actor = Actor()
        while head := os.read(orders, 4):
            text = actor.act(*pickle.loads(os.read(orders, struct.unpack("<I", head)[0])))
            os.write(answers, text.encode().ljust(4096))
        os._exit(0)

    def begin(self, name: str, args: tuple[Any, ...], to: str | None) -> None:
        """Requests a call."""
        order = pickle.dumps((name, args, to))
        os.write(self.orders, struct.pack("<I", len(order)) + order)

    def is_done(self, seconds: float) -> bool:
        """Whether it answers within a time."""
        return bool(select.select([self.answers], [], [], seconds)[0])

    def end(self) -> str:
        """Waits for its answer and returns it."""
        return os.read(self.answers, 4096).decode().rstrip() or "died"

    def close(self) -> None:
        """Ends it."""
        os.close(self.orders)
        os.close(self.answers)
        os.waitpid(self.pid, 0)


class Battery:
    """Numbers calls and prints a line for each."""

    def __init__(self, folder: str, out: TextIO) -> None:
        """Calls happen below `folder`, in one folder for each section."""
        self.root, self.out, self.count = os.path.abspath(folder), out, 0
        self.actor, self.peers = Actor(), dict[str, Peer]()
        signal.signal(signal.SIGALRM, hang)
        # The signal that another process wants the lease.
        signal.signal(signal.SIGIO, signal.SIG_IGN)

    def section(self, name: str) -> None:
        """Begins with a new folder and no descriptors."""
        self.finish()
        os.umask(0o022)
        os.chdir(self.root)
        os.mkdir(name)
        os.chdir(name)
        print(f"# {name}", file=self.out)

    def finish(self) -> None:
        """Ends other processes and closes descriptors."""
        for peer in self.peers.values():
            peer.close()
        self.peers.clear()
        self.actor.close()

    def line(self, text: str, answer: str) -> None:
        """Prints the next line."""
        self.count += 1
        print(f"{self.count:03} {text} -> {answer}", file=self.out, flush=True)

    def __call__(self, name: str, *args: Any, to: str | None = None) -> None:
        """Makes a call and records it."""
        self.line(written(name, args, to), self.actor.act(name, args, to))

    def quiet(self, name: str, *args: Any, to: str | None = None) -> None:
        """Makes a call that must succeed, and records nothing."""
        answer = self.actor.act(name, args, to)
        if answer in ERRORS.values() or answer == "hangs":
            raise RuntimeError(f"{written(name, args, to)}: {answer}")

    def peer(self, who: str) -> Peer:
        """Another process: `peer` is root, the others are users; `member` has one more group."""
        ids = {
            "nobody": (65534, 65534, []),
            "other": (1000, 1000, []),
            "member": (1000, 1000, [4000]),
        }
        if who not in self.peers:
            self.peers[who] = Peer(ids.get(who))
        return self.peers[who]

    def by(self, who: str, name: str, *args: Any, to: str | None = None) -> None:
        """Lets another process make a call, and records it."""
        peer = self.peer(who)
        peer.begin(name, args, to)
        self.line(f"{who}: {written(name, args, to)}", peer.end())

    def waits(self, who: str, name: str, *args: Any) -> Peer:
        """Lets another process begin a call that is not answered at once."""
        peer = self.peer(who)
        peer.begin(name, args, None)
        self.line(
            f"{who}: {written(name, args, None)}", "answered" if peer.is_done(0.3) else "waits"
        )
        return peer

    def answers(self, who: str) -> None:
        """Records the answer of the call that was begun."""
        self.line(f"{who}: and then", self.peers[who].end())

    def moves(self, paths: tuple[str, ...], name: str, *args: Any) -> None:
        """Makes a call, and records which times of some paths it changed."""

        def all_times() -> list[tuple[int, int] | None]:
            found: list[tuple[int, int] | None] = []
            for path in paths:
                try:
                    st = os.lstat(path)
                    found.append((st.st_mtime_ns, st.st_ctime_ns))
                except FileNotFoundError:
                    found.append(None)
            return found

        before = all_times()
        time.sleep(0.02)
        answer = self.actor.act(name, args, None)
        told = []
        for path, old, new in zip(paths, before, all_times()):
            if old is None or new is None:
                told.append(f"{path}: {'new' if new else 'gone'}")
                continue
            moved = [
                it
                for it, is_same in (("mtime", old[0] == new[0]), ("ctime", old[1] == new[1]))
                if not is_same
            ]
            told.append(f"{path}: {'+'.join(moved) or 'kept'}")
        self.line(written(name, args, None), f"{answer}; {', '.join(told)}")
