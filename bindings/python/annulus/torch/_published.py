# SPDX-License-Identifier: Apache-2.0
"""Says whether a module has the attributes of LongNet's published attention, and whether its code is the published one:
its forward(), and every function that forward() calls.

Functions are compared by digests of their syntax trees, so comments, docstrings, annotations, spaces and line breaks
may differ. tests/bindings/python/torch_forks_test.py computes the digests from checkouts.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import inspect
import sys
import textwrap
import types
from typing import Any, Dict, Iterator, Literal, NamedTuple, Set, Tuple, Union

from torch import nn

# The digests of DilatedAttention's functions, and of the functions and classes that they call, in
# - torchscale: all commits from da3d79c of 2023-12-19, where LongNet appeared, to 4d1e0e8, the newest one (the releases
#   on PyPI, up to 0.3.0, have no LongNet);
# - Prov-GigaPath: all commits from 0383083 of 2024-05-21, its first release, to 09d8e87 of 2025-03-22.
# All commits have the same code, but for FlashAttnFunc. Prov-GigaPath's custom_dilated_attention.py is not in the
# table, since it reads key_padding_mask.
DIGESTS: Dict[str, Tuple[str, ...]] = {
    "forward": ("836d62b08ad1c023",),
    "dense_to_sparse": ("eb199f69a26ac373",),
    "sparse_to_dense": ("75a7f9c19cff3e0a",),
    "gather_kv": ("61a54d0b02cc6f14",),
    "gathering": ("365047477becb9ae",),
    "scattering": ("1482450171de775f",),
    "attention_ops": ("6f3196e2c03d8dfd",),
    "padding_to_multiple_of": ("b907a7074f29cec1",),
    "get_data_parallel_group": ("5e5656802e9234bc",),
    "get_rank": ("d7f9e43026950041",),
    "get_world_size": ("283bb71ea131fd4f",),
    "get_data_parallel_rank": ("fac452b6c0e63684",),
    "get_data_parallel_world_size": ("894af355e62e94bf",),
    "Allgather": ("5ce0049eb06ad277",),
    "flash_attn_func": ("6313e50c311b22ef",),
    # The newest one; a185ece to 64be2f0; da3d79c.
    "FlashAttnFunc": ("6630ac41b6a703c7", "ae0400fa09475181", "ffe99468a79fe7ad"),
}

PROJECTIONS = ("k_proj", "v_proj", "q_proj", "out_proj")

# What the published code calls of packages that are not its own.
_PACKAGES = ("torch", "einops", "math", "typing", "apex", "flash_attn", "xformers")


class Returned(NamedTuple):
    """What a forward() returns: a tuple or list of `size` values, the output first, or the output alone.

    has_others: a value after the output is not None.
    """

    kind: Literal["tuple", "list", "output"] = "tuple"
    size: int = 2
    has_others: bool = False

    def of(self, output: Any) -> Any:
        """Returns what forward() returns for an output, with None for all other values."""
        if self.kind == "output":
            return output
        values = (output, *[None] * (self.size - 1))
        return values if self.kind == "tuple" else [*values]


_Definition = Union[ast.FunctionDef, ast.ClassDef]


class Unreadable(Exception):
    """The source of a function cannot be read, or is not that of one function."""


def _form(node: Any) -> Any:
    """Returns what a syntax tree says, as nested tuples that are equal in all versions of Python."""
    if isinstance(node, list):
        return tuple(_form(item) for item in node)
    if isinstance(node, ast.Constant):
        return "Constant", repr(node.value)
    if not isinstance(node, ast.AST):
        return repr(node)
    left_out = ("annotation", "returns", "type_comment", "type_params", "ctx")
    fields = {name: value for name, value in ast.iter_fields(node) if name not in left_out and value not in (None, [])}
    if isinstance(node, (ast.FunctionDef, ast.ClassDef)) and ast.get_docstring(node, clean=False) is not None:
        fields["body"] = node.body[1:]
    return (type(node).__name__, *((name, _form(value)) for name, value in sorted(fields.items())))


def digest(definition: _Definition) -> str:
    """Returns the digest of the definition of a function or class."""
    return hashlib.sha256(repr(_form(definition)).encode()).hexdigest()[:16]


@functools.lru_cache(maxsize=256)
def _definition(thing: Any) -> _Definition:
    """Returns the syntax tree of a function or class. Raises Unreadable."""
    try:
        # A function's code names its own source, where the function itself may name the one that it wraps.
        source = inspect.getsource(thing if isinstance(thing, type) else thing.__code__)
        (node,) = ast.parse(textwrap.dedent(source)).body
    except (AttributeError, OSError, TypeError, ValueError, SyntaxError):
        raise Unreadable from None
    if not isinstance(node, (ast.FunctionDef, ast.ClassDef)):
        raise Unreadable
    return node


def _lookup(module: nn.Module, name: str) -> Any:
    """Returns what module.NAME is by its class, or by itself if that has another one."""
    if name in module.__dict__:
        return module.__dict__[name]
    return inspect.getattr_static(type(module), name, None)


def _called(module: nn.Module) -> Iterator[Tuple[str, Any]]:
    """Yields forward(), and every function and class of the module's own code that is used from there, with a name.

    Raises Unreadable with a name.
    """
    waiting = [("forward", _lookup(module, "forward"))]
    seen: Set[int] = set()
    while waiting:
        name, thing = waiting.pop()
        owner = getattr(thing, "__self__", None)
        if getattr(thing, "__name__", "") == "apply" and isinstance(owner, type):  # of a torch.autograd.Function
            thing = owner
        if seen and (thing is None or id(thing) in seen or _package_of(thing) in _PACKAGES):
            continue
        seen.add(id(thing))
        try:
            node = _definition(thing)
        except (Unreadable, TypeError):
            raise Unreadable(name) from None
        yield name, thing
        names = vars(sys.modules[thing.__module__]) if isinstance(thing, type) else thing.__globals__
        for use in ast.walk(node):
            if isinstance(use, ast.Name) and use.id in names and isinstance(use.ctx, ast.Load):
                waiting.append((use.id, names[use.id]))
            elif isinstance(use, ast.Attribute) and isinstance(use.value, ast.Name) and use.value.id == "self":
                found = _lookup(module, use.attr)
                if callable(found) or isinstance(found, property):
                    waiting.append((use.attr, found))


def _package_of(thing: Any) -> str:
    name = thing.__name__ if isinstance(thing, types.ModuleType) else getattr(thing, "__module__", None) or ""
    return str(name).partition(".")[0]


def looks_published(module: nn.Module) -> bool:
    """Returns whether a module has the attributes of the published code's attention with dilated branches."""
    args = getattr(module, "args", None)
    return (
        all(module._modules.get(name) is not None for name in PROJECTIONS)  # wrappers only show a module's inside
        and hasattr(module, "num_heads")
        and getattr(args, "segment_length", None) is not None
        and getattr(args, "dilated_ratio", None) is not None
    )


def difference(module: nn.Module) -> str | None:
    """Returns why a module's forward() does not count as the published one, or None if it is the published one."""
    if type(module).__call__ is not nn.Module.__call__:
        return "its class has a __call__() of its own"
    try:
        for name, thing in _called(module):
            definition = _definition(thing)
            if getattr(thing, "__closure__", None) or digest(definition) not in DIGESTS.get(definition.name, ()):
                return f"its {name}() is not the published one"
    except Unreadable as error:
        return f"the source of its {error}() cannot be read, so it is not known to be the published one"
    return None


def returned(module: nn.Module) -> Returned | None:
    """Returns what a module's forward() returns, read off its source; None if the source does not say.

    Without source it counts as returning what the published one returns.
    """
    forwards = [kind.__dict__["forward"] for kind in type(module).__mro__ if "forward" in kind.__dict__]
    for forward in forwards:
        try:
            node = _definition(forward)
        except Unreadable:
            return Returned()
        values = [use.value for use in ast.walk(node) if isinstance(use, ast.Return)]
        if not all(isinstance(value, ast.Call) and ast.unparse(value.func) == "super().forward" for value in values):
            found = {_returned_by(value, node) for value in values}
            return found.pop() if len(found) == 1 else None
    return None


def _returned_by(value: ast.expr | None, forward: _Definition) -> Returned | None:
    if isinstance(value, (ast.Tuple, ast.List)) and value.elts:
        others = value.elts[1:]
        has_others = not all(isinstance(other, ast.Constant) and other.value is None for other in others)
        return Returned("tuple" if isinstance(value, ast.Tuple) else "list", len(value.elts), has_others)
    if isinstance(value, ast.Call) and ast.unparse(value.func) == "self.out_proj":
        return Returned("output", 1)
    if isinstance(value, ast.Name):
        assigned = [
            _returned_by(use.value, forward)
            for use in ast.walk(forward)
            if isinstance(use, ast.Assign)
            and any(isinstance(target, ast.Name) and target.id == value.id for target in use.targets)
        ]
        return assigned[-1] if assigned else None
    return None
