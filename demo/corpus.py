"""Real texts from a source on every machine with Python: the standard library.

Documents for the workload consist of the documentation strings of the standard
library's packages, and of license texts on Debian. Questions about a document use
the names that it defines.
"""

from __future__ import annotations

import ast
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

LICENCES = Path("/usr/share/common-licenses")
_TOPICS = (
    ("asyncio", ("asyncio",)),
    ("email", ("email",)),
    ("files", ("pathlib.py", "shutil.py", "os.py", "tempfile.py", "tarfile.py", "zipfile.py")),
    ("testing", ("unittest", "doctest.py")),
    ("numbers", ("statistics.py", "fractions.py", "decimal.py", "_pydecimal.py", "random.py")),
    ("network", ("http", "urllib", "socketserver.py", "ssl.py", "smtplib.py")),
    ("processes", ("multiprocessing", "concurrent", "subprocess.py", "threading.py")),
    ("text", ("textwrap.py", "difflib.py", "gettext.py", "argparse.py", "optparse.py")),
)
_QUESTIONS = (
    "What is the purpose of {name}?",
    "When would one use {name}, and when not?",
    "Which arguments does {name} take?",
    "What happens when {name} fails?",
    "Explain {name} to a beginner.",
)


@dataclass(frozen=True)
class Document:
    """A long text with questions about it."""

    name: str
    text: str
    questions: tuple[str, ...]


def library() -> Path:
    """Returns the folder of the standard library."""
    return Path(sysconfig.get_paths()["stdlib"])


def _sources(entries: tuple[str, ...]) -> Iterator[Path]:
    for entry in entries:
        path = library() / entry
        if path.is_dir():
            yield from sorted(path.rglob("*.py"))
        elif path.exists():
            yield path


def _docstrings(path: Path) -> Iterator[tuple[str, str]]:
    """Yields qualified name and documentation of a source file's definitions."""
    try:
        tree = ast.parse(path.read_text(encoding="utf-8"))
    except (SyntaxError, UnicodeDecodeError):
        return
    module = path.parent.name if path.stem == "__init__" else path.stem
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Module)):
            text = ast.get_docstring(node)
            if text and len(text) > 60:
                name = module if isinstance(node, ast.Module) else f"{module}.{node.name}"
                yield name, text


def documents(count: int, questions: int) -> list[Document]:
    """Returns up to eight documents, each with its questions.

    The texts are longer than any prefix of the demo, which cuts them to length
    in tokens.
    """
    found = []
    for topic, entries in _TOPICS[:count]:
        parts = [(name, text) for source in _sources(entries) for name, text in _docstrings(source)]
        body = "\n\n".join(f"## {name}\n{text}" for name, text in parts)
        step = max(1, len(parts) // questions)
        asked = tuple(
            _QUESTIONS[i % len(_QUESTIONS)].format(name=parts[i * step % len(parts)][0])
            for i in range(questions)
        )
        found.append(Document(topic, f"# The Python library: {topic}\n\n{body}", asked))
    return found


def training_texts(size: int) -> Iterator[str]:
    """Yields about ``size`` bytes of text to train a tokenizer on."""
    left = size
    if LICENCES.is_dir():
        for path in sorted(LICENCES.iterdir()):
            if path.is_file() and not path.is_symlink():
                text = path.read_text(encoding="utf-8", errors="replace")
                left -= len(text)
                yield text
    for _, entries in _TOPICS:
        for source in _sources(entries):
            for _, text in _docstrings(source):
                left -= len(text)
                if left < 0:
                    return
                yield text
