"""Reads the product's code as data for the pages that repeat it: modules, class names and threads.

``python -m tests.helpers.code_map`` writes the generated parts of the pages again; tests compare them with the code.
"""

from __future__ import annotations

import ast
import functools
import importlib
import inspect
import pathlib
import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

from tests.helpers import documents, metric_help, source_trees
from tests.helpers.paths import ROOT

COMMAND = "python -m tests.helpers.code_map"
MODULES, ARCHITECTURE, GLOSSARY = "docs/modules.md", "docs/architecture.md", "docs/glossary.md"
NAMES = "docs/names.md"
PUBLIC_MODULES = (
    "pubsub_api", "pubsub_api.errors", "pubsub_api.driver", "nb_api", "nb_api.models", "nb_api.errors", "nb_api.db_api",
    "durable_log", "durable_log.errors", "durable_log.log_api", "shared_subscriptions", "shared_subscriptions.errors",
    "durability_service.errors", "publisher_service.errors", "spark_pipeline.errors",
)  # fmt: skip
"""What programs import, each with ``__all__``."""
_NOT_PRODUCT = ("tests", "bench", "examples")
_THREADS = ("Thread", "PeriodicThread", "ThreadPoolExecutor", "Timer")
"""What starts a thread.  A class that passes its own argument on as the thread's name counts, too."""
_NAME_ARGUMENTS = {"PeriodicThread": 0, "ThreadPoolExecutor": 1}
_WORD = re.compile(r"[A-Z]+(?=[A-Z][a-z])|[A-Z][a-z0-9]*|[A-Z]+")


class Class(NamedTuple):
    """A public class of the product, and the first sentence about it or, in parentheses, about its module."""

    name: str
    path: str
    says: str

    @property
    def last_word(self) -> str:
        return str(_WORD.findall(self.name)[-1]).lower()


class ThreadName(NamedTuple):
    """The name that a thread is given, with ``*`` for what differs, and the module that gives it."""

    name: str
    path: str


@functools.cache
def trees() -> dict[str, ast.Module]:
    """Path -> syntax tree of every module of the product, in the order of the paths."""
    folders = [path.parent for path in ROOT.glob("*/__init__.py") if not path.parent.is_symlink()]
    packages = [folder for folder in folders if folder.name not in _NOT_PRODUCT]
    paths = sorted(path.relative_to(ROOT) for package in packages for path in package.rglob("*.py"))
    return {str(path): tree for path, tree in source_trees.parse(paths).items()}


def first_sentence(node: ast.Module | ast.ClassDef | str) -> str:
    """The first sentence of a docstring, in one line that a table can hold; empty when there is none."""
    text = node if isinstance(node, str) else ast.get_docstring(node) or ""
    paragraph = " ".join(text.partition("\n\n")[0].split())
    sentence = re.split(r"(?<=[.?!])(?:\s+(?=[A-Z`])|$)", paragraph, maxsplit=1)[0]
    return sentence.replace("`", "").replace("|", "or").replace("*", r"\*").rstrip(".:")


def folder_map() -> str:
    """The packages and folders of the product with what each is, as a table."""
    rows = [
        f"| `{path.removesuffix('/__init__.py')}` | {first_sentence(tree)} |"
        for path, tree in trees().items()
        if path.endswith("/__init__.py")
    ]
    return "\n".join(["| Folder | What it is |", "| --- | --- |", *rows])


def module_map() -> str:
    """Every module of the product with what it is, by folder."""
    lines: list[str] = []
    folders: dict[str, list[str]] = defaultdict(list)
    for path in trees():
        folders[str(pathlib.Path(path).parent)].append(path)
    for folder, paths in sorted(folders.items()):
        lines += [f"## {folder}", "", f"{first_sentence(trees()[folder + '/__init__.py'])}.", ""]
        modules = [path for path in paths if not path.endswith("/__init__.py")]
        lines += [f"- `{pathlib.Path(path).name}`: {first_sentence(trees()[path])}" for path in modules]
        lines += [""] if modules else []
    return "\n".join(lines).rstrip()


def name_map() -> str:
    """Every public name with what it is, by the module that programs import it from."""
    lines: list[str] = []
    for name in PUBLIC_MODULES:
        module = importlib.import_module(name)
        lines += [f"## {name}", "", "| Name | What it is |", "| --- | --- |"]
        lines += [f"| `{one}` | {_told(getattr(module, one))} |" for one in module.__all__]
        lines.append("")
    return "\n".join(lines).rstrip()


def _told(value: object) -> str:
    if not inspect.isclass(value) and not inspect.isfunction(value):
        return "a type, for annotations"
    return first_sentence(inspect.getdoc(value) or "")


def public_classes() -> list[Class]:
    """The public classes at the top of modules; what is shipped for tests, and errors, are not among them."""
    return [
        Class(node.name, path, first_sentence(node) or f"({first_sentence(tree)})")
        for path, tree in trees().items()
        if "/testing/" not in path and not path.endswith("/errors.py")
        for node in tree.body
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    ]


def glossary_terms() -> list[str]:
    """The terms that the glossary explains, in its order and in lower case."""
    return [documents.plain(row[0]).lower() for row in documents.table(GLOSSARY, "Terms")]


def ordinary_endings() -> set[str]:
    """The endings of class names that the glossary explains together."""
    return {word.lower() for word in re.findall(r"`(\w+)`", documents.section(GLOSSARY, "Endings of class names"))}


def unexplained_classes() -> dict[str, list[Class]]:
    """Last word -> classes, for the words that are neither terms nor ordinary endings."""
    known = {*glossary_terms(), *ordinary_endings()}
    known |= {re.split("[ -]", term)[-1] for term in known}
    known |= {term + ending for term in known for ending in ("s", "es")}
    found: dict[str, list[Class]] = defaultdict(list)
    for one in public_classes():
        if one.last_word not in known:
            found[one.last_word].append(one)
    return dict(sorted(found.items()))


def class_table() -> str:
    """The classes whose last word is no term, each with what it is."""
    rows = [
        f"| {one.name} | {one.says} | `{one.path}` |"
        for classes in unexplained_classes().values()
        for one in sorted(classes)
    ]
    return "\n".join(["| Class | What it is | Module |", "| --- | --- | --- |", *rows])


def thread_names() -> set[ThreadName]:
    """The names of all threads that the product starts, outside of what is shipped for tests."""
    makers = _makers()
    return {
        ThreadName(name, path)
        for path, tree in trees().items()
        if "/testing/" not in path
        for owner, call in _calls(tree)
        if (maker := _maker_of(owner, call)) in makers
        if (name := _name_of(call, makers[maker])) is not None
    }


def _makers() -> Mapping[str, int]:
    """What makes a thread -> the place of its name among the arguments: the library's, and classes that pass it on."""
    makers = {maker: _NAME_ARGUMENTS.get(maker, -1) for maker in _THREADS}
    known = 0
    while known < len(makers):  # who passes a name on to one that passes it on counts, too
        known = len(makers)
        makers |= {name: place for name, place in _passing_on(makers) if name not in makers}
    return makers


def _passing_on(makers: Mapping[str, int]) -> Iterator[tuple[str, int]]:
    """Classes that make one of these with an argument of their own as its name, and the place of that argument."""
    for path, tree in trees().items():
        if "/testing/" in path:
            continue
        for owner, call in _calls(tree):
            if owner is not None and owner.name not in makers and (maker := _maker_of(owner, call)) in makers:
                argument = _argument(call, makers[maker])
                names = [one.arg for one in _arguments_of_init(owner)]
                passed = ast.unparse(argument).removeprefix("self._").removeprefix("self.") if argument else ""
                if passed in names:
                    yield owner.name, names.index(passed) - 1


def _arguments_of_init(owner: ast.ClassDef) -> list[ast.arg]:
    for node in owner.body:
        if isinstance(node, ast.FunctionDef) and node.name == "__init__":
            return [*node.args.args, *node.args.kwonlyargs]
    return []


def _calls(tree: ast.Module) -> Iterator[tuple[ast.ClassDef | None, ast.Call]]:
    """Every call with the class it stands in."""
    for top in tree.body:
        owner = top if isinstance(top, ast.ClassDef) else None
        yield from ((owner, node) for node in ast.walk(top) if isinstance(node, ast.Call))


def _maker_of(owner: ast.ClassDef | None, call: ast.Call) -> str:
    called = ast.unparse(call.func)
    if called == "super().__init__" and owner is not None and owner.bases:
        called = ast.unparse(owner.bases[0])
    return called.partition("[")[0].rpartition(".")[2]


def _argument(call: ast.Call, place: int) -> ast.expr | None:
    named = [keyword.value for keyword in call.keywords if keyword.arg in ("name", "thread_name_prefix")]
    return named[0] if named else call.args[place] if 0 <= place < len(call.args) else None


def _name_of(call: ast.Call, place: int) -> str | None:
    """The name that a call gives, with ``*`` for what differs; None when it passes on a name that it was given."""
    argument = _argument(call, place)
    if argument is None:
        return "Thread-*"  # what Python itself calls it
    if isinstance(argument, ast.Constant):
        return str(argument.value)
    if isinstance(argument, ast.JoinedStr):
        return "".join(str(part.value) if isinstance(part, ast.Constant) else "*" for part in argument.values)
    return None


GENERATED: Mapping[str, tuple[str, Callable[[], str]]] = {
    "modules": (MODULES, module_map),
    "folders": (ARCHITECTURE, folder_map),
    "classes": (GLOSSARY, class_table),
    "names": (NAMES, name_map),
}
"""Mark in a page -> the page, and what gives the text that belongs between ``<!-- mark -->`` and ``<!-- /mark -->``."""


def replaced(page: str, mark: str, text: str) -> str:
    """The page with the text between its marks."""
    pattern = rf"(?<=<!-- {mark} -->\n).*?(?=<!-- /{mark} -->)"
    return re.sub(pattern, lambda _: f"{text}\n", documents.read(page), flags=re.DOTALL)


def follow_moved_threads() -> None:
    """Correct the modules in the table of threads, where a thread has kept its name and only one module has it."""
    text = documents.read(ARCHITECTURE)
    rows = [(documents.plain(row[0]), documents.plain(row[1])) for row in documents.table(ARCHITECTURE, "Threads")]
    started = thread_names()
    for name, path in rows:
        now = [one.path for one in started if one.name == name]
        if path not in now and len(now) == 1:
            text = text.replace(f"| `{name}` | `{path}` |", f"| `{name}` | `{now[0]}` |")
    (ROOT / ARCHITECTURE).write_text(text)


def main() -> None:
    """Write the generated parts again."""
    follow_moved_threads()
    for mark, (page, text) in GENERATED.items():
        (ROOT / page).write_text(replaced(page, mark, text()))
    metric_help.FILE.write_text(metric_help.text())


if __name__ == "__main__":
    main()
