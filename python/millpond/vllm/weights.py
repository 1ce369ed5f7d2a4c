"""Identifies the weights and the tokenizer of an engine by their content.

Block hashes do not cover the model, so a wrong answer here gives wrong output
without an error: two fine-tunes of one model often have the same shapes, the
same file sizes and the same headers, and differ only in the middle of their
files. Weight files are therefore hashed as a whole. A file of the Hugging Face
cache has its SHA-256 as its name and is not read. Digests of other files are
stored for the next start, together with the files' metadata.
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

_SUFFIXES = (
    *(".safetensors", ".bin", ".pt", ".pth", ".gguf", ".tensors", ".npz"),
    # Configuration, tokenizers, and code that comes with a model.
    *(".json", ".model", ".tiktoken", ".txt", ".py", ".yaml", ".jinja"),
)
_PIECE_BYTES = 8 << 20
_BLOB = re.compile(r"[0-9a-f]{64}")
_COMMIT = re.compile(r"[0-9a-f]{40}")
_SAID_BYTES = 1 << 30
"""Files above this size take long enough for a log message."""


class UnknownModelError(ValueError):
    """The bytes of a model cannot be identified on this host."""


def fingerprint(model: str, revision: str | None, hub: str | None = None) -> str:
    """Identifies a model or a tokenizer.

    A local folder or file is identified by content, so that equal files under
    different paths share a cache and different files under one path do not. A name
    on the Hugging Face hub is combined with the commit of its revision in the local
    cache, because branches move.

    Args:
        model: a path, or a name on the hub.
        revision: branch, tag or commit; None is the main branch.
        hub: folder of the hub's cache, if it is not the default one.

        Raises:
            UnknownModelError: the path does not exist, and the cache does not have the name.
    """
    root = Path(model)
    if root.is_file():
        return f"file:{_digests([root])[0]}"
    if not root.is_dir():
        return f"name:{model}@{_commit(model, revision or 'main', hub)}"
    digest = hashlib.sha256()
    paths = [path for path in sorted(root.rglob("*")) if _counts(root, path)]
    for path, content in zip(paths, _digests(paths), strict=True):
        name = path.relative_to(root).as_posix()
        digest.update(f"{name}:{path.stat().st_size}:{content}\n".encode())
    return f"files:{digest.hexdigest()}"


def _counts(root: Path, path: Path) -> bool:
    """Whether a file of a model's folder may influence the model's results."""
    hidden = any(part.startswith(".") for part in path.relative_to(root).parts)
    return not hidden and path.suffix in _SUFFIXES and path.is_file()


def _commit(model: str, revision: str, hub: str | None) -> str:
    """The commit of a revision in the hub's cache."""
    if _COMMIT.fullmatch(revision):
        return revision
    home = Path(os.environ.get("HF_HOME", Path.home() / ".cache" / "huggingface"))
    cache = Path(hub or os.environ.get("HF_HUB_CACHE") or home / "hub")
    # The name of a file or a quantization of a repository follows the repository's name.
    repository = "/".join(model.split(":")[0].split("/")[:2])
    ref = cache / f"models--{repository.replace('/', '--')}" / "refs" / revision
    try:
        commit = ref.read_text(encoding="ascii").strip()
    except (OSError, ValueError):
        commit = ""
    if not commit:
        raise UnknownModelError(f"{model!r} is no local path, and {ref} names no commit")
    return commit


def _digests(paths: list[Path]) -> list[str]:
    """SHA-256 of the files, in hexadecimal; digests of large files are stored."""
    folder = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "millpond"
    with _alone(folder) as usable:
        known = _Known(folder / "weights.json" if usable else None)
        total = sum(path.stat().st_size for path in paths if known.of(path) is None)
        if total >= _SAID_BYTES:
            logger.info(
                "millpond: hashing %.1f GB of weights, once, to distinguish this model from others "
                "(set `model_id` to use a name instead)",
                total / 1e9,
            )
        with concurrent.futures.ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as threads:
            digests = list(threads.map(known.digest, paths))
        known.save()
    return digests


@contextlib.contextmanager
def _alone(folder: Path) -> Iterator[bool]:
    """Lets one process of this host hash at a time; the others find its digests.

    Yields False if the folder cannot be used.
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
    """Digests of unchanged files: by path, inode, length and times."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._all: dict[str, str] = {}
        if path is not None:
            # An unreadable record is replaced.
            with contextlib.suppress(OSError, ValueError):
                read = json.loads(path.read_text(encoding="utf-8"))
                self._all = {str(name): str(digest) for name, digest in dict(read).items()}

    @staticmethod
    def _name(path: Path) -> str:
        found, place = path.stat(), os.path.realpath(path)
        times = f"{found.st_mtime_ns}:{found.st_ctime_ns}"
        return f"{place}:{found.st_dev}:{found.st_ino}:{found.st_size}:{times}"

    def of(self, path: Path) -> str | None:
        """The digest of a file without reading it, if it is known."""
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
        # Not for a file that was written during the read.
        if self._name(path) == name:
            self._all[name] = digest.hexdigest()
        return digest.hexdigest()

    def save(self) -> None:
        """Stores the known digests."""
        if self._path is None:
            return
        new = self._path.with_suffix(f".{os.getpid()}")
        with contextlib.suppress(OSError):
            new.write_text(json.dumps(self._all), encoding="utf-8")
            new.replace(self._path)
