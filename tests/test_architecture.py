"""The import table, sizes and docstrings hold; found by reading the code, not by running it."""

from __future__ import annotations

import ast
import graphlib
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FILES = {
    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path
    for top in ("aacli", "stages")
    for path in sorted((ROOT / top).rglob("*.py"))
}
TREES = {name: ast.parse(path.read_text("utf-8")) for name, path in FILES.items()}

HEAVY = {"torch", "transformers", "trl", "datasets", "deepspeed", "accelerate", "peft"}
# Loaded before, or wholly without, torch: the command line, recipes, plain records, environments,
# rule states, rule rewards, the rollout. A name stands for everything below it.
NO_TORCH = (
    "aacli",
    "stages.recipe",
    "stages.common.errors",
    "stages.common.run_folder",
    "stages.common.manifest",
    "stages.common.model_folder",
    "stages.common.records",
    "stages.common.shapes",
    "stages.sft.data",
    "stages.common.seeding",
    "stages.common.console",
    "stages.common.live",
    "stages.common.libraries",
    "stages.common.trackers",
    "stages.common.machine",
    "stages.interaction.trajectory",
    "stages.interaction.actions",
    "stages.interaction.environments",
    "stages.interaction.states",
    "stages.interaction.rewards.functions",
    "stages.interaction.rewards.mix",
    "stages.interaction.rewards.shaping",
    "stages.interaction.rewards.relevance",
    "stages.interaction.rollout",
    "stages.interaction.speaker",
    "stages.interaction.terminal",
    "stages.interaction.generation",
    "stages.interaction.demonstrations",
    "stages.interaction.preferences",
    "stages.interaction.arena",
    "stages.evaluation.metrics",
    "stages.evaluation.data_shapes",
    "stages.evaluation.starter",
    "stages.evaluation.intervals",
    "stages.evaluation.report",
    "stages.evaluation.duel",
    "stages.evaluation.long_episodes",
    "stages.evaluation.state_probes",
    "stages.memory",
    "stages.study",
)
# What a room may import of the others; a room may always import itself.
ALLOWED = {
    "stages.common": set(),
    "stages.interaction": {"stages.common"},
    "stages.recipe": {
        "stages.common.errors",
        "stages.interaction.environments",
        "stages.interaction.rewards.functions",
        "stages.interaction.rewards.mix",
        "stages.interaction.rewards.shaping",
    },
    "stages.sft": {"stages.common", "stages.interaction", "stages.recipe"},
    "stages.reward": {"stages.common", "stages.interaction", "stages.recipe"},
    "stages.rl": {
        "stages.common",
        "stages.interaction",
        "stages.recipe",
        "stages.evaluation",
    },
    "stages.evaluation": {"stages.common", "stages.interaction", "stages.recipe"},
    "stages.pretraining": {"stages.common", "stages.interaction"},
    "stages.pipeline": {
        "stages.common",
        "stages.evaluation",
        "stages.interaction",
        "stages.recipe",
        "stages.reward.run",
        "stages.rl.run",
        "stages.sft.run",
    },
    "stages.memory": {
        "stages.common",
        "stages.interaction.native",
        "stages.pipeline",
        "stages.recipe",
    },
    "stages.study": {
        "stages.common",
        "stages.evaluation",
        "stages.pipeline",
        "stages.recipe",
    },
    # The bench measures all of it; nothing imports the bench.
    "stages.bench": {
        "stages.common",
        "stages.evaluation",
        "stages.interaction",
        "stages.recipe",
        "stages.rl",
        "stages.sft",
    },
    "aacli": {
        "stages.common",
        "stages.evaluation",
        "stages.interaction.environments",
        "stages.memory",
        "stages.pipeline",
        "stages.recipe",
        "stages.reward.run",
        "stages.rl.run",
        "stages.sft.run",
        "stages.study",
    },
}
# Packages that only one place may name, so that moving off them is one file's work.
ONLY_IN = {
    "deepspeed": {"stages.common.engine"},
    "accelerate": {"stages.common.engine"},
    "trl.experimental": {"stages.rl.trl_adapter"},
    "trl.generation": {"stages.rl.vllm_adapter"},
    "peft": {"stages.common.adapters", "stages.common.quantized"},
}
# Whole-recipe objects stop where a command or stage is composed.
KNOWS_RECIPE = {
    "run",
    "pipeline",
    "assembly",
    "session",
    "collect",
    "check",
    "chat",
    "diff",
    "labelling",
    "plan",
    "player",
    "serve",
}
LONGEST_FUNCTION, LONGEST_MODULE, MOST_PARAMETERS = 50, 400, 8
# The rollout is where environments, states, policy and rewards meet: all by keyword.
MANY_PARAMETERS = {"stages.interaction.rollout.collect": 14}


def below(name: str, parents: set[str] | tuple[str, ...]) -> bool:
    """Whether a module is one of ``parents`` or inside one."""
    return any(name == parent or name.startswith(parent + ".") for parent in parents)


def room(name: str) -> str:
    """``stages.rl`` for ``stages.rl.critic.view``; ``aacli`` for all of the command line."""
    return "aacli" if name.startswith("aacli") else ".".join(name.split(".")[:2])


def statements(tree: ast.AST, *, everywhere: bool) -> Iterator[ast.Import | ast.ImportFrom]:
    """Import statements; ``everywhere`` False leaves out those in functions and type checks."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield node
        elif everywhere or not (_is_function(node) or _is_type_check(node)):
            yield from statements(node, everywhere=everywhere)


def imports(name: str, *, everywhere: bool = True) -> set[str]:
    """The modules a module names: ours by their full name, others as they are written."""
    found = set()
    for node in statements(TREES[name], everywhere=everywhere):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        else:
            assert node.level == 0, f"{name} imports relatively"
            found |= {_target(node.module or "", alias.name) for alias in node.names}
    return found


def _target(module: str, attribute: str) -> str:
    return f"{module}.{attribute}" if f"{module}.{attribute}" in FILES else module


def _is_function(node: ast.AST) -> bool:
    return isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)


def _is_type_check(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)


def loaded_by(name: str) -> set[str]:
    """All that importing a module imports, through our own modules; packages run their inits."""
    seen: set[str] = set()
    waiting = [name]
    while waiting:
        current = waiting.pop()
        if current in seen:
            continue
        seen.add(current)
        parts = current.split(".")
        waiting += [".".join(parts[:i]) for i in range(1, len(parts))]
        if current in FILES:
            waiting += imports(current, everywhere=False)
    return seen


def public(name: str) -> Iterator[tuple[str, ast.AST]]:
    """Public modules, classes, functions and methods, with their dotted names."""
    yield name, TREES[name]

    def inside(node: ast.AST, prefix: str) -> Iterator[tuple[str, ast.AST]]:
        for child in ast.iter_child_nodes(node):
            named = isinstance(child, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
            if named and not child.name.startswith("_"):
                yield f"{prefix}.{child.name}", child
                if isinstance(child, ast.ClassDef):
                    yield from inside(child, f"{prefix}.{child.name}")

    yield from inside(TREES[name], name)


def functions() -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
    """Every function of the project with where it stands."""
    for name, tree in TREES.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                yield f"{name}.{node.name}:{node.lineno}", node


def test_the_walk_sees_the_project():
    assert len(FILES) > 30
    assert "stages.common.errors" in imports("stages.common.run_folder")
    assert "stages.common.manifest" in imports("stages.common.run_folder")
    assert "stages.common.manifest" not in imports("stages.common.run_folder", everywhere=False)


@pytest.mark.parametrize("name", [n for n in FILES if below(n, NO_TORCH)])
def test_no_torch(name):
    reached = {module.split(".")[0] for module in loaded_by(name)} & HEAVY
    assert not reached, f"importing {name} loads {reached}"


@pytest.mark.parametrize("name", [n for n in NO_TORCH if not n.startswith("aacli")])
def test_modules_of_the_table_exist(name):
    assert any(below(module, (name,)) for module in FILES)


@pytest.mark.parametrize("name", FILES)
def test_arrows_point_one_way(name):
    own = room(name)
    if name == "stages":
        return
    assert own in ALLOWED, f"{own} is no room of the import table"
    ours = {module for module in imports(name) if below(module, ("stages", "aacli"))}
    sideways = {m for m in ours if room(m) != own and not below(m, ALLOWED[own])}
    assert not sideways, f"{name} may not import {sorted(sideways)}"


@pytest.mark.parametrize("name", FILES)
def test_packages_that_one_place_may_name(name):
    for package, places in ONLY_IN.items():
        if name not in places:
            used = {module for module in imports(name) if below(module, (package,))}
            assert not used, f"{name} imports {used}; only {places} may"


def test_no_cycles():
    graph = {
        name: {m for m in imports(name, everywhere=False) if m in FILES and m != name}
        for name in FILES
    }
    graphlib.TopologicalSorter(graph).prepare()


@pytest.mark.parametrize("name", [n for n in FILES if n.startswith("stages")])
def test_whole_recipes_stop_at_run(name):
    if room(name) == "stages.recipe" or name.split(".")[-1] in KNOWS_RECIPE:
        return
    for node in statements(TREES[name], everywhere=True):
        if isinstance(node, ast.ImportFrom) and node.module == "stages.recipe.models":
            assert "Recipe" not in {alias.name for alias in node.names}, f"{name} knows the recipe"


@pytest.mark.parametrize("name", FILES)
def test_public_symbols_have_docstrings(name):
    if not TREES[name].body:
        return
    bare = [symbol for symbol, node in public(name) if not ast.get_docstring(node)]
    assert bare == []


@pytest.mark.parametrize("name", FILES)
def test_modules_stay_small_and_are_named_after_one_thing(name):
    assert len(FILES[name].read_text("utf-8").splitlines()) <= LONGEST_MODULE
    assert name.split(".")[-1] not in {"utils", "helpers", "misc", "common_utils"}


def test_functions_stay_small():
    long = {w: n.end_lineno - n.lineno + 1 for w, n in functions() if n.end_lineno}
    assert {where: lines for where, lines in long.items() if lines > LONGEST_FUNCTION} == {}


def test_functions_take_few_parameters():
    many = {}
    for where, node in functions():
        arguments = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
        count = len([a for a in arguments if a.arg not in ("self", "cls")])
        if count > MANY_PARAMETERS.get(where.split(":")[0], MOST_PARAMETERS):
            many[where] = count
    assert many == {}


def scanned() -> list[Path]:
    """Files of the project, in which no machine may be named; what a person makes is theirs."""
    suffixes = {".py", ".toml", ".yaml", ".md", ".txt"}
    folders = ("aacli", "stages", "recipes", "tests")
    found = [p for name in folders for p in (ROOT / name).rglob("*")] + list(ROOT.glob("*"))
    named = [p for p in found if p.suffix in suffixes and p.is_file()]
    return [p for p in (*named, ROOT / "Makefile", ROOT / ".ci/run") if p != Path(__file__)]


def test_build_files_are_scanned_too():
    names = {str(path.relative_to(ROOT)) for path in scanned()}
    assert {"Makefile", ".ci/run", "constraints.txt", "pyproject.toml"} <= names


def test_no_machine_or_registry_is_named():
    for path in scanned():
        text = path.read_text("utf-8")
        for word in ("/work/", "pypi.org", "pythonhosted", "index-url"):
            assert word not in text, f"{path.relative_to(ROOT)} names {word}"
