"""Which weights an engine serves, by their content.

Block hashes do not cover the model, so a wrong answer here is wrong output
without an error: two fine-tunes of one model often have the same shapes, the
same file sizes and the same headers, and differ in the middle of their files
only. Weight files are therefore hashed whole. A file of the Hugging Face
cache has its SHA-256 as its name and is not read; digests of other files are
remembered with what the file system says of them, for the next start.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import fcntl
import hashlib
import json
import logging
import os
import re
from collections.abc import Iterator
from pathlib import Path

logger = logging.getLogger("vllm.millpond")

_PATTERNS = ("*.safetensors", "*.bin", "*.pt", "*.pth", "*.gguf", "*.json")
_PIECE_BYTES = 8 << 20
_BLOB = re.compile(r"[0-9a-f]{64}")
_SAID_BYTES = 1 << 30
"""What takes long enough that somebody may wonder why nothing happens."""


def fingerprint(model: str, revision: str | None) -> str:
    """Identifies the weights that an engine serves.

    A local folder is identified by the content of its files, so that the same
    files under another path share a cache and other files under the same path
    do not. A name on the Hugging Face hub is taken with the commit that its
    revision stands for in the local cache, since branches move; where the
    cache does not say it, with the name of the revision.
    """
    root = Path(model)
    if not root.is_dir():
        return f"name:{model}@{_commit(model, revision or 'main')}"
    digest = hashlib.sha256()
    paths = sorted({path for pattern in _PATTERNS for path in root.glob(pattern)})
    for path, content in zip(paths, _digests(paths), strict=True):
        digest.update(f"{path.name}:{path.stat().st_size}:{content}\n".encode())
    return f"files:{digest.hexdigest()}"


def _commit(model: str, revision: str) -> str:
    """The commit of a revision in the hub's cache; the revision when it is not known there."""
    home = Path(os.environ.get("HF_HOME", Path.home() / ".cache" / "huggingface"))
    cache = Path(os.environ.get("HF_HUB_CACHE", home / "hub"))
    ref = cache / f"models--{model.replace('/', '--')}" / "refs" / revision
    try:
        return ref.read_text(encoding="ascii").strip() or revision
    except (OSError, ValueError):
        return revision


def _digests(paths: list[Path]) -> list[str]:
    """SHA-256 of the files, in hexadecimal; those of large ones are remembered."""
    folder = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "millpond"
    with _alone(folder) as usable:
        known = _Known(folder / "weights.json" if usable else None)
        total = sum(path.stat().st_size for path in paths if known.of(path) is None)
        if total >= _SAID_BYTES:
            logger.info(
                "millpond: hashing %.1f GB of weights, once, to tell this model from others "
                "(`model_id` gives it a name instead)",
                total / 1e9,
            )
        with concurrent.futures.ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as threads:
            digests = list(threads.map(known.digest, paths))
        known.save()
    return digests


@contextlib.contextmanager
def _alone(folder: Path) -> Iterator[bool]:
    """Hashes in one process of this host at a time: the others find its digests.

    Gives False where the folder cannot be used.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = (folder / "weights.lock").open("w")
    except OSError:
        yield False
        return
    with lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield True


class _Known:
    """Digests of files as they are: by place, inode, length and times."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._all: dict[str, str] = {}
        if path is not None:
            # Another one is made where it cannot be read.
            with contextlib.suppress(OSError, ValueError):
                read = json.loads(path.read_text(encoding="utf-8"))
                self._all = {str(name): str(digest) for name, digest in dict(read).items()}

    @staticmethod
    def _name(path: Path) -> str:
        found, place = path.stat(), os.path.realpath(path)
        times = f"{found.st_mtime_ns}:{found.st_ctime_ns}"
        return f"{place}:{found.st_dev}:{found.st_ino}:{found.st_size}:{times}"

    def of(self, path: Path) -> str | None:
        """What is known of a file without reading it."""
        blob = Path(os.path.realpath(path))
        if blob.parent.name == "blobs" and _BLOB.fullmatch(blob.name):
            return blob.name
        return self._all.get(self._name(path))

    def digest(self, path: Path) -> str:
        """The digest of a file, read if it is not known."""
        known = self.of(path)
        if known is not None:
            return known
        name, digest = self._name(path), hashlib.sha256()
        with path.open("rb") as file:
            while piece := file.read(_PIECE_BYTES):
                digest.update(piece)
        # Not of a file that was written meanwhile.
        if self._name(path) == name:
            self._all[name] = digest.hexdigest()
        return digest.hexdigest()

    def save(self) -> None:
        """Remembers what is known now."""
        if self._path is None:
            return
        new = self._path.with_suffix(f".{os.getpid()}")
        with contextlib.suppress(OSError):
            new.write_text(json.dumps(self._all), encoding="utf-8")
            new.replace(self._path)
