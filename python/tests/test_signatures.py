"""The stub, the native module and the asyncio client agree."""

from __future__ import annotations

import ast
import inspect
from pathlib import Path

import millpond
import pytest
from millpond import _native

PACKAGE = Path(millpond.__file__).parent
# Asyncio classes and the classes of the stub that they mirror.
MIRRORS = {"AsyncStore": "Store", "AsyncNamespace": "Namespace", "AsyncFailOpen": "FailOpen"}


def classes(path: Path) -> dict[str, dict[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
    """The public methods of every class of a module, by name."""
    found = {}
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.ClassDef):
            methods = [
                n for n in node.body if isinstance(n, (ast.FunctionDef, ast.AsyncFunctionDef))
            ]
            found[node.name] = {m.name: m for m in methods if not m.name.startswith("_")}
    return found


STUB = classes(PACKAGE / "_native.pyi")
AIO = classes(PACKAGE / "aio.py")
FILES = classes(PACKAGE / "files.py")


def returns(method: ast.FunctionDef | ast.AsyncFunctionDef) -> str:
    text = ast.unparse(method.returns) if method.returns else ""
    return text.replace("AsyncIterator", "Iterator")


@pytest.mark.parametrize("name", MIRRORS)
def test_asyncio_takes_and_returns_what_the_stub_says(name: str) -> None:
    ours, stub = AIO[name], STUB[MIRRORS[name]]
    assert set(ours) == set(stub)
    for verb, method in ours.items():
        assert ast.unparse(method.args) == ast.unparse(stub[verb].args), verb
        assert returns(method) == returns(stub[verb]), verb
        here, there = ast.get_docstring(method), ast.get_docstring(stub[verb])
        assert here and there and here.split("\n")[0] == there.split("\n")[0], verb


def test_asyncio_has_the_verbs_of_files() -> None:
    volume = {**STUB["NativeVolume"], **FILES["Volume"]}
    pairs = [(FILES["AsyncFile"], STUB["File"]), (FILES["AsyncVolume"], volume)]
    # Calls that are asynchronous by themselves, and a file for libraries that are blocking.
    missing = [{"submit_read", "submit_write"}, {"stream", "closed"}]
    for (ours, theirs), without in zip(pairs, missing):
        assert set(ours) == set(theirs) - without
        for verb in set(ours) - {"close"}:
            assert ast.unparse(ours[verb].args) == ast.unparse(theirs[verb].args), verb
            assert returns(ours[verb]).replace("Async", "") == returns(theirs[verb]), verb
            here, there = ast.get_docstring(ours[verb]), ast.get_docstring(theirs[verb])
            assert here and there and here.split("\n")[0] == there.split("\n")[0], verb


@pytest.mark.parametrize("name", [name for name in STUB if STUB[name]])
def test_the_native_module_takes_what_the_stub_says(name: str) -> None:
    native = getattr(_native, name)
    public = {verb for verb in vars(native) if not verb.startswith("_")}
    stubbed = set(STUB[name]) | {
        node.target.id
        for cls in ast.parse((PACKAGE / "_native.pyi").read_text()).body
        if isinstance(cls, ast.ClassDef) and cls.name == name
        for node in cls.body
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)
    }
    assert public == stubbed
    for verb, method in STUB[name].items():
        if any(isinstance(d, ast.Name) and d.id == "property" for d in method.decorator_list):
            continue
        wanted = ast.parse(f"def f({ast.unparse(method.args)}): ...").body[0]
        assert isinstance(wanted, ast.FunctionDef)
        for argument in [*wanted.args.args, *wanted.args.kwonlyargs]:
            argument.annotation = None
        given = inspect.signature(getattr(native, verb))
        plain = [p.replace(annotation=inspect.Parameter.empty) for p in given.parameters.values()]
        said = str(given.replace(parameters=plain, return_annotation=inspect.Signature.empty))
        # The native parser marks self as positional only.
        assert said.replace("(self, /", "(self").replace(" ", "") == (
            f"({ast.unparse(wanted.args)})".replace(" ", "")
        ), verb


def test_the_store_fails_open_with_the_arguments_of_a_namespace() -> None:
    plain = inspect.signature(millpond.Client.namespace).parameters
    opened = inspect.signature(millpond.Client.fail_open).parameters
    assert {name: str(p) for name, p in opened.items() if name in plain} == {
        name: str(p) for name, p in plain.items()
    }
    assert set(opened) - set(plain) == {"deadline_ms", "retry_ms", "failures", "writes"}


@pytest.mark.parametrize("name", STUB)
def test_the_native_module_has_the_documentation_of_the_stub(name: str) -> None:
    native = getattr(_native, name)
    for verb, method in STUB[name].items():
        wanted = ast.get_docstring(method)
        if wanted is None:
            continue
        shown = getattr(native, verb).__doc__
        assert shown, f"{name}.{verb} has no documentation"
        assert inspect.cleandoc(shown) == wanted.replace("``", "`"), verb
    if name in millpond.__all__:
        assert native.__doc__
