# SPDX-License-Identifier: Apache-2.0
"""Configs and contexts that functions without a context argument make once and find again."""

from __future__ import annotations

import functools
from typing import Any, Iterable, Tuple, Union

from ._arrays import Place
from ._config import BranchLike, Config, branch_of, listed
from ._context import Context
from ._errors import ArgumentError


def cached_context(config: Config, place: Place, threads: int = 0) -> Context:
    """Returns this thread's context for a config, a device and a number of CPU threads. The config keeps it alive."""
    contexts = config._contexts.by_place
    key = place, threads
    context = contexts.get(key)
    if context is None or context._handle.was_left:
        kind, number = place
        context = contexts[key] = Context(config, kind if kind == "cpu" else f"{kind}:{number}", threads=threads)
    return context


@functools.lru_cache(maxsize=256)
def _config(branches: Tuple[BranchLike, ...], options: Tuple[Tuple[str, Any], ...]) -> Config:
    return Config(branches, **dict(options))


def cached_config(branches: Union[Config, Iterable[BranchLike], None], options: dict[str, Any]) -> Config:
    """Returns a config itself, or the config of branches and options, which is made once."""
    if isinstance(branches, Config):
        if options:
            raise ArgumentError(f"{', '.join(options)} beside a config; config.replace() changes its options")
        return branches
    branches, values = listed(branches), tuple(options.items())  # type: ignore[arg-type]  # listed() refuses None
    if not _is_hashable(branches):  # they hold lists or dicts
        branches = tuple(branch_of(branch) for branch in branches)
    return _config(branches, values) if _is_hashable(values) else Config(branches, **options)


def _is_hashable(value: Any) -> bool:
    try:
        hash(value)
    except TypeError:
        return False
    return True


def given(**options: Any) -> dict[str, Any]:
    """Returns the options that a caller set, which are not None."""
    return {name: value for name, value in options.items() if value is not None}
