"""Imports point one way, and the pure packages stay pure."""

import ast
from collections.abc import Iterable
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ALLOWED = {
    "events": {"events"},
    "adapters": {"events", "adapters"},
    "agent_server": {"events", "adapters", "agent_server"},
}
OURS = set(ALLOWED) | {"tests", "benchmarks", "training", "examples"}
IMPURE = {
    "asyncio", "anyio", "torch", "transformers", "fastapi", "starlette", "uvicorn", "httpx", "sqlalchemy",
    "threading", "multiprocessing", "socket", "subprocess", "time", "random", "secrets", "uuid", "requests",
}  # fmt: skip


def modules(package: str) -> list[Path]:
    return sorted((ROOT / package).rglob("*.py"))


@cache
def syntax_nodes(path: Path) -> list[ast.AST]:
    return list(ast.walk(ast.parse(path.read_text("utf-8"))))


@cache
def imported(path: Path) -> frozenset[str]:
    names: set[str] = set()
    for node in syntax_nodes(path):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            names.add(node.module)
    return frozenset(names)


@pytest.mark.parametrize("package", ALLOWED)
def test_imports_point_one_way(package: str):
    wrong = {
        f"{path.relative_to(ROOT)}: {name}"
        for path in modules(package)
        for name in imported(path)
        if name.split(".")[0] in OURS - ALLOWED[package]
    }
    assert not wrong


@pytest.mark.parametrize("package", ["events", "adapters"])
def test_pure_packages_do_no_io_and_read_no_clock(package: str):
    wrong = {
        f"{path.relative_to(ROOT)}: {name}"
        for path in modules(package)
        for name in imported(path)
        if name.split(".")[0] in IMPURE
    }
    assert not wrong


def test_a_clock_hidden_behind_datetime_is_found_too():
    readers = {"now", "today", "utcnow"}
    calls = {
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for package in ("events", "adapters")
        for path in modules(package)
        for node in syntax_nodes(path)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr in readers
        and ast.unparse(node.func.value) in {"datetime", "datetime.datetime", "date", "datetime.date"}
    }
    assert not calls


def test_scheduling_knows_no_torch():
    paths = modules("agent_server/generation/scheduling")
    assert len(paths) > 5
    assert not [path for path in paths for name in imported(path) if name.split(".")[0] in {"torch", "transformers"}]


FLOORS: list[set[str]] = [
    {"cli"},
    {"http"},
    {"agents"},
    {"models"},
    {"runs"},
    {"engines"},
    {"generation"},
    {"media", "observability"},
    {"engine_protocol", "model_files", "settings", "bounded", "fair_threads", "pacing", "ids", "version", "_names"},
    {"certificates", "fair_slots", "user"},
]
"""The rooms of agent_server from the top floor down. A room imports from lower floors alone."""


def room_of(module: str) -> str:
    parts = module.split(".")
    return parts[1] if len(parts) > 1 else parts[0]


def floor_of(room: str) -> int:
    return next(number for number, rooms in enumerate(FLOORS) if room in rooms)


def arrows() -> set[tuple[str, str]]:
    """Room → room, for every import inside of agent_server, those for types and those inside of functions included."""
    found = set()
    for path in modules("agent_server"):
        room = room_of(".".join(path.relative_to(ROOT).with_suffix("").parts))
        if room == "__init__":
            continue
        found |= {(room, room_of(name)) for name in imported(path) if name.split(".")[0] == "agent_server"}
    return {(importer, target) for importer, target in found if importer != target}


def test_rooms_of_the_server_import_from_lower_floors_alone():
    everywhere = {room for rooms in FLOORS for room in rooms}
    climbs = {
        f"{importer} -> {target}"
        for importer, target in arrows()
        if target not in everywhere or floor_of(importer) >= floor_of(target)
    }
    assert not climbs


def module_name(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def targets(path: Path, names: set[str]) -> set[str]:
    """The modules of `names` that a file imports, or imports names from."""
    found = set(imported(path))
    for node in syntax_nodes(path):
        if isinstance(node, ast.ImportFrom) and node.module in names:
            inner = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= inner
            if inner <= names:  # modules of a package, and nothing of the package itself
                found.discard(node.module)
    return found & names - {module_name(path)}


def file_arrows(packages: Iterable[str]) -> dict[str, set[str]]:
    """Module → the modules that it imports, those for types and those inside of functions included."""
    paths = [path for package in packages for path in modules(package)]
    names = {module_name(path) for path in paths}
    return {module_name(path): targets(path, names) for path in paths}


def without_ends(arrows: dict[str, set[str]]) -> dict[str, set[str]]:
    """What is left when modules that import nothing that is left are taken away: circles, and what leads to them."""
    left = dict(arrows)
    while ends := {name for name, targets in left.items() if not targets & left.keys()}:
        left = {name: targets for name, targets in left.items() if name not in ends}
    return left


def test_no_module_imports_itself_by_way_of_others():
    assert not without_ends(file_arrows(ALLOWED))


def boxes_of(name: str) -> str:
    """The module or package of a room: `agent_server.runs.store` for each module below it."""
    return ".".join(name.split(".")[:3])


def test_no_package_of_a_room_imports_itself_by_way_of_others():
    boxes: dict[str, set[str]] = {}
    for importer, targets in file_arrows(ALLOWED).items():
        found = boxes.setdefault(boxes_of(importer), set())
        found |= {boxes_of(target) for target in targets if target.count(".") >= 2 or importer.count(".") < 2}
    rooms = {name for name in boxes if name.count(".") < 2}
    assert not without_ends({box: targets - {box} - rooms for box, targets in boxes.items() if box not in rooms})


def test_a_circle_is_found():
    assert without_ends({"a": {"b"}, "b": {"c"}, "c": {"b"}, "d": set()}) == {"a": {"b"}, "b": {"c"}, "c": {"b"}}


def _bindings(path: Path) -> set[str]:
    names: set[str] = set()
    for node in syntax_nodes(path):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Name):
            names.add(node.id)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            names |= {(alias.asname or alias.name).split(".")[0] for alias in node.names}
    return names


@pytest.mark.parametrize("package", ["benchmarks", "training", "examples"])
def test_names_that_no_other_test_imports_exist(package: str):
    """A benchmark is seldom run, so a renamed module would break it unnoticed."""
    missing: list[str] = []
    for path in modules(package):
        for node in syntax_nodes(path):
            if not (isinstance(node, ast.ImportFrom) and node.level == 0 and node.module):
                continue
            source = ROOT.joinpath(*node.module.split("."))
            if node.module.split(".")[0] not in OURS:
                continue
            file = source / "__init__.py" if source.is_dir() else source.with_suffix(".py")
            known = _bindings(file) if file.is_file() else set()
            missing += [
                f"{path.relative_to(ROOT)}:{node.lineno}: {node.module}.{alias.name}"
                for alias in node.names
                if alias.name not in known
                and not (source / f"{alias.name}.py").is_file()
                and not (source / alias.name).is_dir()
                and "__getattr__" not in known
            ]
    assert not missing
