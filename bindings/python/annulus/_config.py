# SPDX-License-Identifier: Apache-2.0
"""What to compute: branches and options."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import json
import math
import threading
import weakref
from typing import TYPE_CHECKING, Any, Dict, Iterable, List, Mapping, NoReturn, Sequence, Tuple, Union, cast

from . import _capi, _plot
from ._arguments import flag, integer, integers, name_of, number, pick
from ._choices import ENGINES, EXCHANGES, KEY_RULES, KINDS, ORDERS, PADDINGS, PHASES, QUERIES
from ._errors import ArgumentError, check, made
from ._mistakes import Reach, warn_of_exchanged_numbers
from ._unknown import refuse
from .types import BranchDict, Engine, Exchange, KeyRule, Kind, Order, Padding, Phase, Query

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from .types import ConfigChanges, ConfigOptions

__all__ = ["Branch", "Config"]


@dataclasses.dataclass(frozen=True)
class Branch:
    """One branch: segments of `segment_length` positions, and every `dilation`-th position of a segment. `Branch.window`
    and `Branch.global_tokens` make the two other kinds of branches.

    segment_length: w >= 1, or 0 for the whole sequence.
    dilation: r >= 1.
    heads: None for all query heads, or (first, count); a count of 0: all heads from first on.
    phase: which residue a head uses: "block" (LongNet's code), "interleave" (LongNet's paper), or an int, one residue
        for all heads.
    query: "dilated" (LongNet: queries and keys of the head's residue), "residue" (keys of the query's own residue),
        "every" (any query, keys of the head's residue).
    order: "linear", or "hilbert" along a Hilbert curve over a grid of `grid_width` columns (0: nearly square).
    kind: "segments", "window" or "global"; the fields behind it belong to windows (left, right) and to global positions.
    """

    segment_length: int
    dilation: int = 1
    heads: Tuple[int, int] | None = None
    phase: Union[Phase, int] = "block"
    query: Query = "dilated"
    order: Order = "linear"
    grid_width: int = 0
    kind: Kind = "segments"
    left: int = 0
    right: int = 0
    first_global: int = 0
    global_count: int = 0
    global_queries: bool = False

    @classmethod
    def window(
        cls,
        left: int,
        right: int,
        dilation: int = 1,
        *,
        heads: Tuple[int, int] | None = None,
        phase: Union[Phase, int] = "block",
        query: Query = "residue",
    ) -> Branch:
        """Makes a window: a query at position n attends to the keys n + j * dilation, for -left <= j <= right.

        left, right: steps of the dilation; -1: no limit. Keys beyond the ends of the sequence do not exist. In a causal
            config no key is after the query.
        heads, phase: as for segments.
        query: "residue", every query; "dilated", a head's phase alone: n modulo the dilation is the phase.
        """
        return cls(0, dilation, heads, phase, query, kind="window", left=left, right=right)

    @classmethod
    def global_tokens(
        cls, count: int, first: int = 0, *, queries: bool = False, heads: Tuple[int, int] | None = None
    ) -> Branch:
        """Makes the positions first to first + count - 1 keys of every query. Those beyond the end of a sequence do not
        exist.

        queries: these positions as queries attend to every key, too.
        """
        return cls(0, 1, heads, kind="global", first_global=first, global_count=count, global_queries=queries)

    def __post_init__(self) -> None:
        def put(name: str, value: Any) -> None:
            object.__setattr__(self, name, value)

        put("segment_length", integer("segment_length", self.segment_length))
        put("dilation", integer("dilation", self.dilation))
        put("grid_width", integer("grid_width", self.grid_width))
        for name in ("left", "right", "first_global", "global_count"):
            put(name, integer(name, getattr(self, name)))
        put("global_queries", flag("global_queries", self.global_queries))
        pick("kind", self.kind, KINDS)
        if not isinstance(self.phase, str):
            put("phase", integer("phase", self.phase))
            if self.phase < 0:
                raise ArgumentError(f"phase is {self.phase}; it must be at least 0")
        elif self.phase not in PHASES:
            raise ArgumentError(f"phase is {self.phase!r}; it must be {', '.join(map(repr, PHASES))} or an int")
        pick("query", self.query, QUERIES)
        pick("order", self.order, ORDERS)
        if self.heads is not None:
            try:
                first, count = self.heads
            except (TypeError, ValueError):
                raise ArgumentError(f"heads is {self.heads!r}; it must be (first, count) or None") from None
            put("heads", (integer("first head", first, 32), integer("head count", count, 32)))


BranchLike = Union[Branch, Tuple[int, int], BranchDict]


def branch_of(value: BranchLike) -> Branch:
    """Returns what a caller gave for one branch as a Branch."""
    if isinstance(value, Branch):
        return value
    try:
        if isinstance(value, Mapping):
            return Branch(**value)
        segment_length, dilation = value
    except (TypeError, ValueError) as error:
        if isinstance(error, ArgumentError):
            raise
        raise ArgumentError(
            f"a branch is {value!r}; it must be (segment length, dilation), a Branch or a dict of a Branch's fields"
        ) from None
    return Branch(segment_length, dilation)


def listed(branches: Iterable[BranchLike]) -> Tuple[BranchLike, ...]:
    """Returns what a caller gave for branches as a tuple."""
    try:
        if isinstance(branches, (str, bytes, Mapping)):
            raise TypeError
        return tuple(branches)
    except TypeError:
        raise ArgumentError(
            f"branches is {branches!r}; it must be a list of branches, such as [(2048, 1), (8192, 4)]: each a (segment "
            "length, dilation), an annulus.Branch or a dict of its fields"
        ) from None


def _add_branch(handle: Any, branch: Branch) -> None:
    raw = _capi.annulus_branch()
    raw.segment_length, raw.dilation, raw.grid_width = branch.segment_length, branch.dilation, branch.grid_width
    if branch.heads is not None:
        raw.first_head, raw.head_count = branch.heads
    if isinstance(branch.phase, str):
        raw.phase_rule = PHASES[branch.phase]
    else:
        raw.phase_rule, raw.residue = _capi.ANNULUS_PHASE_FIXED, branch.phase
    raw.query_rule, raw.order, raw.kind = QUERIES[branch.query], ORDERS[branch.order], KINDS[branch.kind]
    raw.left, raw.right = branch.left, branch.right
    raw.first_global, raw.global_count = branch.first_global, branch.global_count
    raw.global_queries = int(branch.global_queries)
    made(_capi.annulus_config_add_branch(handle, raw))


def _branch_of(handle: Any, index: int) -> Branch:
    raw = _capi.annulus_branch()
    check(_capi.annulus_config_get_branch(handle, index, raw))
    fixed = raw.phase_rule == _capi.ANNULUS_PHASE_FIXED
    return Branch(
        raw.segment_length,
        raw.dilation,
        heads=(raw.first_head, raw.head_count) if raw.first_head or raw.head_count else None,
        phase=raw.residue if fixed else cast(Any, name_of(raw.phase_rule, PHASES)),
        query=cast(Any, name_of(raw.query_rule, QUERIES)),
        order=cast(Any, name_of(raw.order, ORDERS)),
        grid_width=raw.grid_width,
        kind=cast(Any, name_of(raw.kind, KINDS)),
        left=raw.left,
        right=raw.right,
        first_global=raw.first_global,
        global_count=raw.global_count,
        global_queries=bool(raw.global_queries),
    )


def _head_shard_of(handle: Any) -> Tuple[int, int] | None:
    status, first, total = _capi.annulus_config_get_head_shard(handle)
    check(status)
    return (first, total) if total else None


def _options_of(handle: Any) -> dict[str, Any]:
    """Returns the contents of a C config as Config's arguments."""
    scale = made(_capi.annulus_config_get_scale(handle))
    return dict(
        branches=[_branch_of(handle, index) for index in range(made(_capi.annulus_config_branch_count(handle)))],
        causal=bool(made(_capi.annulus_config_get_causal(handle))),
        key_rule=name_of(made(_capi.annulus_config_get_key_rule(handle)), KEY_RULES),
        padding=name_of(made(_capi.annulus_config_get_padding_rule(handle)), PADDINGS),
        head_shard=_head_shard_of(handle),
        scale=None if math.isnan(scale) else scale,
        engine=name_of(made(_capi.annulus_config_get_engine(handle)), ENGINES),
        allow_tf32=bool(made(_capi.annulus_config_get_allow_tf32(handle))),
        workspace_limit=made(_capi.annulus_config_get_workspace_limit(handle)),
        exchange=name_of(made(_capi.annulus_config_get_exchange(handle)), EXCHANGES),
    )


def _options_and_destroy(status_and_handle: Any, *add: Any) -> dict[str, Any]:
    """Returns the options of a new C config, and destroys it. add: a function that adds branches, and its arguments."""
    handle = made(status_and_handle)
    try:
        if add:
            check(add[0](handle, *add[1:]))
        return _options_of(handle)
    finally:
        _capi.annulus_config_destroy(handle)


class _ContextsOfThread(threading.local):
    """The contexts that the calls of a thread made for a config, by device and number of CPU threads. The config keeps
    them alive."""

    def __init__(self) -> None:
        self.by_place: Dict[Tuple[Tuple[str, int], int], Any] = {}


class Config:
    """Which keys each query attends to, and how annulus computes it. Immutable, comparable, hashable.

    branches: a list of (segment length, dilation), of `Branch`, or of dicts with a Branch's fields.
    causal: a query attends only to keys at its own position or before.
    padding: "exact", or "zero_keys" as LongNet's published code pads.
    key_rule: how often a key counts that several branches give to a query: "each_branch", once for each branch, or
        "once".
    head_shard: None if a call has all heads. (first, total) if it has some of `total` heads, from `first` on, as with
        tensor parallelism. Head ranges and phases of the branches then count over all `total` heads.
    scale: the factor on q·k; None is 1/sqrt(D).
    engine: "auto", "cpu", "fused", "gemm", "mma" or "reference".
    allow_tf32: products of float32 tensors may be computed in TF32.
    workspace_limit: an upper bound in bytes for the memory of a call besides its tensors; 0: the engine decides.
    exchange: how ranks exchange rows: "auto", "ring" or "gather".

    Every option can be read back as an attribute. `annulus.attention`, `annulus.Context` and `annulus.torch` take a
    config, and compute the same with it.
    """

    __slots__ = ("_handle", "_text", "_reach", "_contexts", "__weakref__")

    _handle: Any
    _text: str
    _reach: Reach
    _contexts: _ContextsOfThread

    # Read back from the C config.
    branches: List[Branch]
    causal: bool
    padding: Padding
    key_rule: KeyRule
    head_shard: Tuple[int, int] | None
    scale: float | None
    engine: Engine
    allow_tf32: bool
    workspace_limit: int
    exchange: Exchange

    def __init__(
        self,
        branches: Iterable[BranchLike] = (),
        *,
        causal: bool = False,
        padding: Padding = "exact",
        key_rule: KeyRule = "each_branch",
        head_shard: Tuple[int, int] | None = None,
        scale: float | None = None,
        engine: Engine = "auto",
        allow_tf32: bool = False,
        workspace_limit: int = 0,
        exchange: Exchange = "auto",
        **unknown: NoReturn,
    ) -> None:
        refuse("annulus.Config", unknown)
        handle = made(_capi.annulus_config_create())
        weakref.finalize(self, _capi.annulus_config_destroy, handle).atexit = False  # type: ignore[misc]
        for branch in map(branch_of, listed(branches)):
            _add_branch(handle, branch)
        if not made(_capi.annulus_config_branch_count(handle)):
            raise ArgumentError("branches is empty; at least one (segment length, dilation) is needed")
        check(_capi.annulus_config_set_causal(handle, int(flag("causal", causal))))
        check(_capi.annulus_config_set_padding_rule(handle, pick("padding", padding, PADDINGS)))
        check(_capi.annulus_config_set_key_rule(handle, pick("key_rule", key_rule, KEY_RULES)))
        if head_shard is not None:
            try:
                first, total = head_shard
            except (TypeError, ValueError):
                raise ArgumentError(f"head_shard is {head_shard!r}; it must be (first, total) or None") from None
            first, total = integer("first of head_shard", first, 32), integer("total of head_shard", total, 32)
            if total < 1 or not 0 <= first < total:
                raise ArgumentError(f"head_shard is {head_shard!r}; it must be (first, total) with 0 <= first < total")
            check(_capi.annulus_config_set_head_shard(handle, first, total))
        if scale is not None:
            check(_capi.annulus_config_set_scale(handle, number("scale", scale)))
        check(_capi.annulus_config_set_engine(handle, pick("engine", engine, ENGINES)))
        check(_capi.annulus_config_set_allow_tf32(handle, int(flag("allow_tf32", allow_tf32))))
        limit = integer("workspace_limit", workspace_limit)
        if limit < 0:
            raise ArgumentError(f"workspace_limit is {limit}; it must be at least 0")
        check(_capi.annulus_config_set_workspace_limit(handle, limit))
        check(_capi.annulus_config_set_exchange(handle, pick("exchange", exchange, EXCHANGES)))
        self._handle = handle
        # The contents of the C config as plain data. Equality, hashing, pickling and compiled graphs use this text.
        held = _options_of(handle)
        self._reach = Reach(held["branches"], held["head_shard"])
        held["branches"] = [list(dataclasses.astuple(branch)) for branch in held["branches"]]
        self._text = json.dumps(held)
        self._contexts = _ContextsOfThread()
        _by_text.setdefault(self._text, self)
        warn_of_exchanged_numbers(self.branches)

    @classmethod
    def longnet(
        cls,
        segment_length: int,
        segment_ratio: int = 2,
        dilation_ratio: int = 2,
        count: int = 6,
        **options: Unpack[ConfigOptions],
    ) -> Config:
        """Makes LongNet's geometric series: `count` branches (segment_length * segment_ratio**i, dilation_ratio**i)."""
        numbers = [
            integer("segment_length", segment_length),
            integer("segment_ratio", segment_ratio),
            integer("dilation_ratio", dilation_ratio),
            integer("count", count, 32),
        ]
        preset = _options_and_destroy(_capi.annulus_config_create(), _capi.annulus_config_add_longnet, *numbers)
        return cls(**{**preset, **options})

    @classmethod
    def gigapath(cls, **options: Unpack[ConfigOptions]) -> Config:
        """Makes the five branches and the zero_keys padding of Prov-GigaPath's slide encoder (H = 16, D = 48)."""
        preset = _options_and_destroy(_capi.annulus_config_create(), _capi.annulus_config_add_preset, "gigapath")
        return cls(**{**preset, **options})

    @classmethod
    def sliding(cls, left: int, right: int = 0, dilation: int = 1, **options: Unpack[ConfigOptions]) -> Config:
        """Makes a sliding window: `left` keys before each query, itself, and `right` keys after it. It is causal if
        `right` is 0, as language models have it: a window of W tokens is `sliding(W - 1)`."""
        preset: dict[str, Any] = dict(branches=[Branch.window(left, right, dilation)], causal=right == 0)
        return cls(**{**preset, **options})

    @classmethod
    def longformer(
        cls, window: int, global_tokens: int = 1, dilation: int = 1, **options: Unpack[ConfigOptions]
    ) -> Config:
        """Makes Longformer's pattern: `window` keys on each side of a query, every `dilation`-th, and the first
        `global_tokens` positions, which attend to every key and which every query attends to. Each key counts once.

        Hugging Face's attention_window counts both sides: its half is `window` here.
        """
        branches = [Branch.window(window, window, dilation)]
        if integer("global_tokens", global_tokens) != 0:
            branches.append(Branch.global_tokens(global_tokens, queries=True))
        preset: dict[str, Any] = dict(branches=branches, key_rule="once")
        return cls(**{**preset, **options})

    @classmethod
    def head_groups(
        cls, heads: int, segment_lengths: Sequence[int], dilations: Sequence[int], **options: Unpack[ConfigOptions]
    ) -> Config:
        """Divides the `heads` query heads among the branches, so that each head has one branch."""
        heads = integer("heads", heads, 32)
        lengths, rates = integers("segment_lengths", segment_lengths), integers("dilations", dilations)
        if len(lengths) != len(rates):
            raise ArgumentError(
                f"segment_lengths has {len(lengths)} numbers and dilations {len(rates)}; both need as many"
            )
        if heads >= 1 and not 1 <= len(lengths) <= heads:
            raise ArgumentError(
                f"segment_lengths has {len(lengths)} numbers; it must have from 1 to {heads}, the heads"
            )
        groups = _capi.annulus_config_add_head_groups, heads, len(lengths), lengths, rates
        return cls(**{**_options_and_destroy(_capi.annulus_config_create(), *groups), **options})

    def replace(self, **changes: Unpack[ConfigChanges]) -> Config:
        """Returns a config with some options changed, such as causal=True."""
        return type(self)(**{**_options_of(self._handle), **changes})

    def plot(self, length: int, heads: int = 1) -> Any:
        """Draws which keys each query attends to in a sequence of `length` positions (at most 2048), with matplotlib.

        Query heads that attend to the same keys share a row of pictures. Each branch has a column, and all branches
        together have one. A picture has queries from top to bottom and keys from left to right; a key is darker the
        more often it counts. With more than 128 positions, a cell of the picture is the mean over several queries and
        keys. A branch with the Hilbert order has a picture of its curve below.

        Returns a figure of matplotlib.pyplot, which can be shown or saved (`config.plot(64).savefig("pattern.png")`).
        Raises ImportError without matplotlib.
        """
        return _plot.plot(self, length, heads)

    def __getattr__(self, name: str) -> Any:
        if name in _DEFAULTS:
            return _options_of(self._handle)[name]
        raise AttributeError(f"annulus.Config has no {name!r}")

    def __len__(self) -> int:
        """The number of branches."""
        return made(_capi.annulus_config_branch_count(self._handle))

    def __eq__(self, other: object) -> bool:
        return self._text == other._text if isinstance(other, Config) else NotImplemented

    def __hash__(self) -> int:
        return hash(self._text)

    def __reduce__(self) -> Any:
        return from_text, (self._text,)

    def __repr__(self) -> str:
        options = _options_of(self._handle)
        branches = [
            (
                (branch.segment_length, branch.dilation)
                if branch == Branch(branch.segment_length, branch.dilation)
                else branch
            )
            for branch in options.pop("branches")
        ]
        parts = [repr(branches)]
        parts += [f"{name}={value!r}" for name, value in options.items() if value != _DEFAULTS[name]]
        return f"annulus.Config({', '.join(parts)})"


_DEFAULTS = {
    name: parameter.default for name, parameter in inspect.signature(Config).parameters.items() if name != "unknown"
}

# The first config with each text, while it is alive.
_by_text: weakref.WeakValueDictionary[str, Config] = weakref.WeakValueDictionary()


def config_of(status_and_handle: Any) -> Config:
    """Makes a Config of a new C config, which it destroys."""
    return Config(**_options_and_destroy(status_and_handle))


def from_text(text: str) -> Config:
    """Returns the config whose `_text` this is."""
    config = _by_text.get(text)
    return _remade(text) if config is None else config


@functools.lru_cache(maxsize=256)
def _remade(text: str) -> Config:
    options = json.loads(text)
    options["branches"] = [Branch(*values) for values in options["branches"]]
    return Config(**options)
