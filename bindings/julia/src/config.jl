# SPDX-License-Identifier: Apache-2.0

const PHASES = (block = LibAnnulus.ANNULUS_PHASE_BLOCK, interleave = LibAnnulus.ANNULUS_PHASE_INTERLEAVE)
const QUERIES = (
    dilated = LibAnnulus.ANNULUS_QUERY_DILATED,
    residue = LibAnnulus.ANNULUS_QUERY_RESIDUE,
    every = LibAnnulus.ANNULUS_QUERY_EVERY,
)
const ORDERS = (linear = LibAnnulus.ANNULUS_ORDER_LINEAR, hilbert = LibAnnulus.ANNULUS_ORDER_HILBERT)
const KINDS = (
    segments = LibAnnulus.ANNULUS_BRANCH_SEGMENTS,
    window = LibAnnulus.ANNULUS_BRANCH_WINDOW,
    global_positions = LibAnnulus.ANNULUS_BRANCH_GLOBAL,
)
const PADDINGS = (exact = LibAnnulus.ANNULUS_PADDING_EXACT, zero_keys = LibAnnulus.ANNULUS_PADDING_ZERO_KEYS)
const KEY_RULES = (each_branch = LibAnnulus.ANNULUS_KEY_EACH_BRANCH, once = LibAnnulus.ANNULUS_KEY_ONCE)
const EXCHANGES = (
    auto = LibAnnulus.ANNULUS_EXCHANGE_AUTO,
    ring = LibAnnulus.ANNULUS_EXCHANGE_RING,
    gather = LibAnnulus.ANNULUS_EXCHANGE_GATHER,
)

const ENGINES = (
    auto = LibAnnulus.ANNULUS_ENGINE_AUTO,
    reference = LibAnnulus.ANNULUS_ENGINE_REFERENCE,
    cpu = LibAnnulus.ANNULUS_ENGINE_CPU,
    gemm = LibAnnulus.ANNULUS_ENGINE_GEMM,
    fused = LibAnnulus.ANNULUS_ENGINE_FUSED,
    mma = LibAnnulus.ANNULUS_ENGINE_MMA,
)

engine_name(code) = Symbol(unsafe_string(LibAnnulus.annulus_engine_name(code)))

"""
    Branch(segment_length, dilation; heads=nothing, phase=:block, query=:dilated, order=:linear, grid_width=0)

One branch: segments of `segment_length` positions (0: the whole sequence), and every `dilation`-th position of a segment.

* `heads`: a range of query heads, counted from 1, such as `1:4`; `nothing` for all. A range that ends at `typemax(Int32)`
  has all heads from its first on.
* `phase`: which residue (place in the segment modulo the dilation) a head uses: `:block` as LongNet's code,
  `:interleave` as LongNet's paper, or a number >= 0, one residue for all heads.
* `query`: `:dilated` (LongNet: queries and keys of the head's residue), `:residue` (keys of the query's own residue),
  `:every` (any query, keys of the head's residue).
* `order`: `:linear`, or `:hilbert` along a Hilbert curve over a grid of `grid_width` columns (0: nearly square).
"""
struct Branch
    segment_length::Int64
    dilation::Int64
    heads::Union{Nothing,UnitRange{Int}}
    phase::Union{Symbol,Int64}
    query::Symbol
    order::Symbol
    grid_width::Int64
    kind::Symbol
    left::Int64
    right::Int64
    first_global::Int64 # counted from 1; 0 for other kinds
    global_count::Int64
    global_queries::Bool
end

function Branch(
    segment_length,
    dilation;
    heads = nothing,
    phase = :block,
    query = :dilated,
    order = :linear,
    grid_width = 0,
    kind = :segments,
    left = 0,
    right = 0,
    first_global = 0,
    global_count = 0,
    global_queries = false,
)
    range = heads === nothing ? nothing : UnitRange{Int}(heads)
    residue = phase isa Symbol ? phase : Int64(phase)
    own = kind, left, right, first_global, global_count, global_queries
    return Branch(segment_length, dilation, range, residue, query, order, grid_width, own...)
end

"""
    window(left, right; dilation=1, heads=nothing, phase=:block, query=:residue)

A branch whose keys are near the query: a query at position n attends to the keys n + j · `dilation`, for
-`left` <= j <= `right`, as far as they exist. A side of -1 has no limit. In a causal config no key is after the query.

* `heads` and `phase`: as for [`Branch`](@ref).
* `query`: `:residue`, every query; `:dilated`, a head's phase alone: n modulo the dilation, counted from 0, is the phase.
"""
window(left, right; dilation = 1, query = :residue, options...) =
    Branch(0, dilation; kind = :window, left, right, query, options...)

"""
    global_tokens(positions; queries=false, heads=nothing)

A branch whose keys are `positions`, a range counted from 1, for every query. Positions beyond the end of a sequence do not
exist. With `queries` these positions attend to every key, too.
"""
global_tokens(positions::AbstractUnitRange; queries = false, heads = nothing) = Branch(
    0,
    1;
    heads,
    kind = :global_positions,
    first_global = first(positions),
    global_count = length(positions),
    global_queries = queries,
)

Base.convert(::Type{Branch}, pair::Tuple{Integer,Integer}) = Branch(pair...)

"""
    Config(branches; causal=false, scale=nothing, padding=:exact, key_rule=:each_branch, head_shard=nothing,
           engine=:auto, allow_tf32=false, workspace_limit=0, exchange=:auto)

What to compute. Each of `branches` is a pair `(segment length, dilation)` or a [`Branch`](@ref). Instead of a list,
[`longnet`](@ref) and [`head_groups`](@ref) give `branches`. [`gigapath`](@ref), [`sliding`](@ref) and [`longformer`](@ref)
make whole configs. [`branches`](@ref) and [`options`](@ref) read a config back.

* `causal`: a query attends only to keys at its own position or before.
* `scale`: the factor on q·k; `nothing` is 1/√D.
* `padding`: `:exact`, or `:zero_keys` for weights that were trained with LongNet's published code.
* `key_rule`: how often a key counts that several branches give to a query: `:each_branch`, once for each branch, or `:once`.
* `head_shard`: `nothing` if a call has all heads; `(first, total)` if it has some of `total` heads, from head `first` on,
  counted from 1. Head ranges and phases of the branches then count over all `total` heads.
* `engine`: `:auto`, `:cpu`, `:fused` (CUDA), `:gemm` (CUDA), `:mma` (CUDA) or `:reference`.
* `allow_tf32`: products of Float32 may be computed in TF32 on a GPU.
* `workspace_limit`: the most bytes that a call may take besides its arrays; 0: the engine decides.
* `exchange`: how ranks exchange rows: `:auto`, `:ring` or `:gather`.
"""
mutable struct Config
    handle::Ptr{LibAnnulus.annulus_config}

    # Takes over a handle that the C API has just made.
    function Config(handle::Ptr{LibAnnulus.annulus_config}, branches = (); options...)
        config = new(handle)
        finalizer(destroy, config)
        add_branches(config, branches)
        set(config; options...)
        return config
    end
end

Config(branches; options...) = Config(made(LibAnnulus.annulus_config_create), branches; options...)

"Returns the handle of the config that a C function makes."
function made(create)
    reference = Ref{Ptr{LibAnnulus.annulus_config}}(C_NULL)
    check(create(reference))
    return reference[]
end

# Sets the options that are not `nothing`.
function set(
    config::Config;
    causal::Union{Nothing,Bool} = nothing,
    scale::Union{Nothing,Real} = nothing,
    padding::Union{Nothing,Symbol} = nothing,
    key_rule::Union{Nothing,Symbol} = nothing,
    head_shard::Union{Nothing,Tuple{Integer,Integer}} = nothing,
    engine::Union{Nothing,Symbol} = nothing,
    allow_tf32::Union{Nothing,Bool} = nothing,
    workspace_limit::Union{Nothing,Integer} = nothing,
    exchange::Union{Nothing,Symbol} = nothing,
)
    apply(setter, value) = value === nothing || check(setter(config, value))
    code(name, value, choices) = value === nothing ? nothing : pick(name, value, choices)
    apply(LibAnnulus.annulus_config_set_causal, causal)
    apply(LibAnnulus.annulus_config_set_scale, scale)
    apply(LibAnnulus.annulus_config_set_padding_rule, code("padding", padding, PADDINGS))
    apply(LibAnnulus.annulus_config_set_key_rule, code("key_rule", key_rule, KEY_RULES))
    if head_shard !== nothing
        first_head, total = head_shard
        1 <= first_head <= total ||
            throw(ArgumentError("head_shard is $head_shard; it must be (first, total) with 1 <= first <= total"))
        check(LibAnnulus.annulus_config_set_head_shard(config, first_head - 1, total))
    end
    apply(LibAnnulus.annulus_config_set_engine, code("engine", engine, ENGINES))
    apply(LibAnnulus.annulus_config_set_allow_tf32, allow_tf32)
    apply(LibAnnulus.annulus_config_set_workspace_limit, workspace_limit)
    apply(LibAnnulus.annulus_config_set_exchange, code("exchange", exchange, EXCHANGES))
    return nothing
end

"Returns the symbol for a number of the C API."
name_of(code, choices) = keys(choices)[findfirst(==(code), values(choices))]

function read_value(getter, T, config)
    value = Ref{T}(0)
    check(getter(config, value))
    return value[]
end

"""
    branches(config)

Returns the branches of a config, in order.
"""
function branches(config::Config)
    return map(0:(length(config)-1)) do index
        reference = Ref(LibAnnulus.ANNULUS_BRANCH_INIT(0, 1))
        check(LibAnnulus.annulus_config_get_branch(config, index, reference))
        raw = reference[]
        first_head = raw.first_head + 1
        last_head = raw.head_count == 0 ? typemax(Int32) : raw.first_head + raw.head_count
        return Branch(
            raw.segment_length,
            raw.dilation;
            heads = raw.first_head == 0 && raw.head_count == 0 ? nothing : first_head:last_head,
            phase = raw.phase_rule == LibAnnulus.ANNULUS_PHASE_FIXED ? raw.residue : name_of(raw.phase_rule, PHASES),
            query = name_of(raw.query_rule, QUERIES),
            order = name_of(raw.order, ORDERS),
            grid_width = raw.grid_width,
            kind = name_of(raw.kind, KINDS),
            left = raw.left,
            right = raw.right,
            first_global = raw.kind == LibAnnulus.ANNULUS_BRANCH_GLOBAL ? raw.first_global + 1 : 0,
            global_count = raw.global_count,
            global_queries = raw.global_queries != 0,
        )
    end
end

function head_shard_of(config)
    first_head, total = Ref{Int32}(0), Ref{Int32}(0)
    check(LibAnnulus.annulus_config_get_head_shard(config, first_head, total))
    return total[] == 0 ? nothing : (Int(first_head[]) + 1, Int(total[]))
end

"""
    options(config)

Returns the options of a config, all but its branches, as a named tuple of the keywords of [`Config`](@ref).
"""
function options(config::Config)
    scale = read_value(LibAnnulus.annulus_config_get_scale, Cdouble, config)
    return (
        causal = read_value(LibAnnulus.annulus_config_get_causal, Cint, config) != 0,
        scale = isnan(scale) ? nothing : scale,
        padding = name_of(read_value(LibAnnulus.annulus_config_get_padding_rule, Int32, config), PADDINGS),
        key_rule = name_of(read_value(LibAnnulus.annulus_config_get_key_rule, Int32, config), KEY_RULES),
        head_shard = head_shard_of(config),
        engine = engine_name(read_value(LibAnnulus.annulus_config_get_engine, Int32, config)),
        allow_tf32 = read_value(LibAnnulus.annulus_config_get_allow_tf32, Cint, config) != 0,
        workspace_limit = Int(read_value(LibAnnulus.annulus_config_get_workspace_limit, UInt64, config)),
        exchange = name_of(read_value(LibAnnulus.annulus_config_get_exchange, Int32, config), EXCHANGES),
    )
end

function destroy(config::Config)
    LibAnnulus.annulus_config_destroy(config.handle)
    config.handle = C_NULL
    return nothing
end

# C functions that take a config accept a Config, which lives until they return.
Base.cconvert(::Type{Ptr{LibAnnulus.annulus_config}}, config::Config) = config
Base.unsafe_convert(::Type{Ptr{LibAnnulus.annulus_config}}, config::Config) = config.handle

"Returns the number of branches."
Base.length(config::Config) = Int(read_value(LibAnnulus.annulus_config_branch_count, Int32, config))

Base.show(io::IO, config::Config) = print(io, "Annulus.Config with ", length(config), " branches")

function add_branch(config, branch)
    first_head, count = 0, 0
    if branch.heads !== nothing
        isempty(branch.heads) && throw(argument_error("heads is $(branch.heads); it must hold a head"))
        first_head = first(branch.heads) - 1
        count = last(branch.heads) == typemax(Int32) ? 0 : length(branch.heads)
    end
    rule, residue = if branch.phase isa Symbol
        pick("phase", branch.phase, PHASES), 0
    else
        LibAnnulus.ANNULUS_PHASE_FIXED, branch.phase
    end
    raw = LibAnnulus.annulus_branch(
        sizeof(LibAnnulus.annulus_branch),
        branch.segment_length,
        branch.dilation,
        residue,
        branch.grid_width,
        first_head,
        count,
        rule,
        pick("query", branch.query, QUERIES),
        pick("order", branch.order, ORDERS),
        branch.left,
        branch.right,
        branch.kind == :global_positions ? branch.first_global - 1 : branch.first_global,
        branch.global_count,
        pick("kind", branch.kind, KINDS),
        branch.global_queries,
    )
    check(LibAnnulus.annulus_config_add_branch(config, Ref(raw), C_NULL))
    return nothing
end

# A list of branches that a function of the C API adds to a config.
struct Preset
    add::Function
end

add_branches(config, preset::Preset) = check(preset.add(config))
add_branches(config, branches) = foreach(branch -> add_branch(config, convert(Branch, branch)), branches)

"""
    longnet(segment_length, segment_ratio, dilation_ratio, count)

Gives `count` branches with w = segment_length · segment_ratio^i and r = dilation_ratio^i, LongNet's geometric series.
"""
longnet(segment_length, segment_ratio, dilation_ratio, count) = Preset() do config
    LibAnnulus.annulus_config_add_longnet(config, segment_length, segment_ratio, dilation_ratio, count)
end

"""
    gigapath(; options...)

Makes the config of Prov-GigaPath's slide encoder: its five branches, with the padding that it was trained with. `options` are
those of [`Config`](@ref).
"""
function gigapath(; options...)
    return Config(Preset(config -> LibAnnulus.annulus_config_add_preset(config, "gigapath")); options...)
end

"""
    sliding(left; right=0, dilation=1, options...)

Makes the config of a sliding window: `left` keys before each query, itself, and `right` keys after it, every `dilation`-th.
It is causal if `right` is 0, as language models have it: a window of W tokens is `sliding(W - 1)`. `options` are those of
[`Config`](@ref).
"""
function sliding(left; right = 0, dilation = 1, options...)
    return Config([window(left, right; dilation)]; causal = right == 0, options...)
end

"""
    longformer(width; tokens=1, dilation=1, options...)

Makes the config of Longformer: `width` keys on each side of a query, every `dilation`-th, and the first `tokens` positions,
which attend to every key and which every query attends to. Each key counts once. `options` are those of [`Config`](@ref).
"""
function longformer(width; tokens = 1, dilation = 1, options...)
    branches = [window(width, width; dilation)]
    tokens == 0 || push!(branches, global_tokens(1:tokens; queries = true))
    return Config(branches; key_rule = :once, options...)
end

"""
    head_groups(heads, pairs)

Gives a branch for each pair (segment length, dilation), and divides the `heads` query heads among the branches.
"""
head_groups(heads, pairs) = Preset() do config
    lengths, dilations = Int64[first(pair) for pair in pairs], Int64[last(pair) for pair in pairs]
    LibAnnulus.annulus_config_add_head_groups(config, heads, length(lengths), lengths, dilations)
end
