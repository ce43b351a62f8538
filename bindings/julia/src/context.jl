# SPDX-License-Identifier: Apache-2.0

"""
    Context(config; device=:cpu, index=0, threads=0, comm=nothing, shards=nothing, owners=nothing)

A device with a config, on which [`forward`](@ref) and [`backward`](@ref) compute. `device` is `:cpu` or `:cuda`, `index`
its number as CUDA counts, from 0. `threads`: how many CPU threads a call may use; 0 is the number in `ANNULUS_NUM_THREADS`,
or one for each CPU that the process may use.

`comm` is a [`Comm`](@ref). `shards` says how many positions each rank holds, and calls check it; `nothing`: each rank has
the positions that its arrays hold, any number of them. With `owners`, shard `i` of the sequence has `shards[i]` positions
and belongs to rank `owners[i]`, counted from 0. A rank with several shards has their rows one behind the other in its
arrays.

One task at a time uses a context; several contexts work at the same time in several threads. The garbage collector
destroys a context, or `close(context)` destroys it at once.
"""
mutable struct Context
    handle::Ptr{LibAnnulus.annulus_context}
    comm::Union{Nothing,CommHandle}
    place::Tuple{Symbol,Int}

    function Context(
        config::Config;
        device::Symbol = :cpu,
        index::Integer = 0,
        threads::Integer = 0,
        comm::Union{Nothing,Comm} = nothing,
        shards::Union{Nothing,AbstractVector{<:Integer}} = nothing,
        owners::Union{Nothing,AbstractVector{<:Integer}} = nothing,
    )
        if owners !== nothing && (shards === nothing || length(owners) != length(shards))
            count = shards === nothing ? 0 : length(shards)
            throw(ArgumentError("owners has $(length(owners)) ranks; there are $count shards"))
        end
        reference = Ref{Ptr{LibAnnulus.annulus_context}}(C_NULL)
        check(LibAnnulus.annulus_context_create(reference, pick("device", device, DEVICES), index))
        context = new(reference[], nothing, (device, Int(index)))
        finalizer(close, context)
        check(LibAnnulus.annulus_context_set_config(context, config))
        device === :cpu && check(LibAnnulus.annulus_context_set_threads(context, threads))
        if comm !== nothing
            check(LibAnnulus.annulus_context_set_comm(context, comm))
            context.comm = hold(comm.handle)
        end
        if shards !== nothing
            lengths = collect(Int64, shards)
            ranks = owners === nothing ? Int32[] : collect(Int32, owners)
            GC.@preserve lengths ranks begin
                address = owners === nothing ? C_NULL : pointer(ranks)
                size = sizeof(LibAnnulus.annulus_shards)
                raw = LibAnnulus.annulus_shards(size, 0, length(lengths), pointer(lengths), address)
                check(LibAnnulus.annulus_context_set_shards(context, Ref(raw)))
            end
        end
        return context
    end
end

const DEVICES = (cpu = LibAnnulus.ANNULUS_DEVICE_CPU, cuda = LibAnnulus.ANNULUS_DEVICE_CUDA)

"Destroys the context now."
function Base.close(context::Context)
    handle, comm = context.handle, context.comm
    context.handle, context.comm = C_NULL, nothing
    LibAnnulus.annulus_context_destroy(handle)
    comm === nothing || release(comm) # the context that used it is gone now
    return nothing
end

Base.cconvert(::Type{Ptr{LibAnnulus.annulus_context}}, context::Context) = context
Base.unsafe_convert(::Type{Ptr{LibAnnulus.annulus_context}}, context::Context) = context.handle

Base.show(io::IO, context::Context) = print(io, "Annulus.Context on ", context.place[1], " ", context.place[2])

"Returns a copy of a context's config."
function config(context::Context)
    return Config(made(reference -> LibAnnulus.annulus_context_copy_config(reference, context)))
end

"Returns the number of devices of a kind, `:cpu` or `:cuda`, that the library can use on this machine."
function device_count(device::Symbol)
    count = Ref{Int32}(0)
    check(LibAnnulus.annulus_device_count(pick("device", device, DEVICES), count))
    return Int(count[])
end

"Calls `f` with a C tensor for each of the `arrays`, tuples (name, array or nothing, number of dimensions). Keeps the arrays alive."
function with_tensors(f, context::Context, arrays...)
    for (name, x, _) in arrays
        x === nothing || place_of(x) == context.place ||
            throw(argument_error("$name is on $(join(place_of(x), " ")), the context on $(join(context.place, " "))"))
    end
    context.place[1] === :cpu || check(LibAnnulus.annulus_context_set_stream(context, stream_of(arrays[1][2])))
    in_use = map(array -> array[2], arrays)
    GC.@preserve in_use begin
        tensors = map(((name, x, rank),) -> x === nothing ? C_NULL : Ref(tensor(name, x, rank)), arrays)
        f(tensors...)
    end
end

const Numbers = Union{Nothing,AbstractVector{<:Integer}}

"Returns the caller's integers, which must be in host memory, less `base`: 1 for positions, which C counts from 0."
host_numbers(name, ::Nothing, base) = Int64[]
function host_numbers(name, x::AbstractVector{<:Integer}, base)
    place_of(x)[1] === :cpu || throw(argument_error("$name is on $(join(place_of(x), " ")); it must be in host memory"))
    return Int64[number - base for number in x]
end

const ADD_FLAGS = (
    d_q = LibAnnulus.ANNULUS_CALL_ADD_D_Q,
    d_k = LibAnnulus.ANNULUS_CALL_ADD_D_K,
    d_v = LibAnnulus.ANNULUS_CALL_ADD_D_V,
)

"Calls `f` with C's options, which count positions from 0. Keeps their arrays alive."
function with_options(f; query_start::Union{Nothing,Integer}, sequence_starts::Numbers, sequence_lengths::Numbers, add = ())
    starts = host_numbers("sequence_starts", sequence_starts, 1)
    lengths = host_numbers("sequence_lengths", sequence_lengths, 0)
    if sequence_starts !== nothing && sequence_lengths !== nothing && length(starts) != length(lengths) + 1
        throw(argument_error(
            "sequence_starts has $(length(starts)) numbers and sequence_lengths $(length(lengths)); " *
            "it must have one more, where the last sequence ends",
        ))
    end
    size = sizeof(LibAnnulus.annulus_call_options)
    flags = query_start === nothing ? 0 : LibAnnulus.ANNULUS_CALL_QUERY_WINDOW
    for name in add
        flags |= pick("a name in add", name, ADD_FLAGS)
    end
    start = query_start === nothing ? 0 : query_start - 1
    count = sequence_starts === nothing ? length(lengths) : length(starts) - 1
    GC.@preserve starts lengths begin
        pointers = (
            sequence_starts === nothing ? C_NULL : pointer(starts),
            sequence_lengths === nothing ? C_NULL : pointer(lengths),
        )
        f(Ref(LibAnnulus.annulus_call_options(size, flags, start, count, pointers...)))
    end
end

"""
    forward!(out, lse, context, q, k, v; query_start=nothing, sequence_starts=nothing, sequence_lengths=nothing)

Computes [`forward`](@ref) into arrays of the caller; `lse` may be `nothing`.
"""
function forward!(
    out,
    lse,
    context::Context,
    q,
    k,
    v;
    query_start::Union{Nothing,Integer} = nothing,
    sequence_starts::Numbers = nothing,
    sequence_lengths::Numbers = nothing,
)
    arrays = (("q", q, 4), ("k", k, 4), ("v", v, 4), ("out", out, 4), ("lse", lse, 3))
    names = (query_start = query_start, sequence_starts = sequence_starts, sequence_lengths = sequence_lengths)
    with_tensors(context, arrays...) do tensors...
        with_options(options -> check(LibAnnulus.annulus_forward(context, tensors..., options)); names...)
    end
    return out, lse
end

"""
    out, lse = forward(context, q, k, v; query_start=nothing, sequence_starts=nothing, sequence_lengths=nothing)

Computes the attention of `q`, of size (D, H, Nq, B), over `k` and `v`, of size (D, G, N, B). `out` has q's size. `lse`, the
logarithms of the softmax's denominators, is (Nq, H, B), Float32 (Float64 for Float64).

Julia's arrays are column-major: the first index runs fastest. The C API, NumPy and PyTorch write [B, N, H, D] for the same
bytes. **Nothing is copied or permuted**: an array of size (D, H, N, B) *is* C's [B, N, H, D]. D is the head dimension (a
multiple of 8 up to 256), H the query heads, G the key/value heads (G divides H), N the positions, B the batch. The last
dimension may be left out if B is 1. Strided views are used in place as long as the stride of D is 1.

`query_start`: `q` holds the positions `query_start`, `query_start + 1`, … of the N positions, counted from 1, for example one
token decoded against a cache; `nothing`: it holds all of them.

`sequence_starts`, `sequence_lengths`: the sequences that the N rows consist of; `nothing`: one for each batch entry. With
starts (one more than there are sequences) sequence i has the rows `starts[i]` to `starts[i+1] - 1`, counted from 1, of every
batch entry, and with lengths only the first `lengths[i]` of them. With lengths alone batch entry b is a sequence of its first
`lengths[b]` rows. Segments are counted inside each sequence. Rows outside every sequence have `out` 0 and `lse` -Inf. Both are
vectors in host memory.
"""
function forward(context::Context, q, k, v; options...)
    out = similar(q)
    lse = similar(q, lse_type(eltype(q)), lse_size(q))
    return forward!(out, lse, context, q, k, v; options...)
end

function lse_size(q)
    3 <= ndims(q) <= 4 || throw(argument_error("q has $(ndims(q)) dimensions; it must have 4, or 3 where B is 1"))
    return (size(q, 3), size(q, 2), size(q)[4:end]...)
end

"""
    backward!(d_q, d_k, d_v, context, q, k, v, out, lse, d_out; d_lse=nothing, add=(), query_start=nothing,
              sequence_starts=nothing, sequence_lengths=nothing)

Computes [`backward`](@ref) into arrays of the caller. Each has q's element type, or Float32 if that type has 16 bits. `add`
names gradients, such as `(:d_k, :d_v)`, that are added to their arrays, with one rounding. All other arrays are overwritten.
"""
function backward!(
    d_q,
    d_k,
    d_v,
    context::Context,
    q,
    k,
    v,
    out,
    lse,
    d_out;
    d_lse = nothing,
    add = (),
    query_start::Union{Nothing,Integer} = nothing,
    sequence_starts::Numbers = nothing,
    sequence_lengths::Numbers = nothing,
)
    inputs = (("q", q, 4), ("k", k, 4), ("v", v, 4), ("out", out, 4), ("lse", lse, 3), ("d_out", d_out, 4))
    outputs = (("d_lse", d_lse, 3), ("d_q", d_q, 4), ("d_k", d_k, 4), ("d_v", d_v, 4))
    rows = (query_start = query_start, sequence_starts = sequence_starts, sequence_lengths = sequence_lengths)
    with_tensors(context, inputs..., outputs...) do tensors...
        with_options(options -> check(LibAnnulus.annulus_backward(context, tensors..., options)); rows..., add = add)
    end
    return d_q, d_k, d_v
end

"""
    d_q, d_k, d_v = backward(context, q, k, v, out, lse, d_out; d_lse=nothing, options...)

Computes the gradients of [`forward`](@ref) from its arguments, `options` and results, the gradient `d_out` of `out` and, unless
it is `nothing`, the gradient `d_lse` of `lse`. `d_q`, `d_k` and `d_v` have the sizes of `q`, `k` and `v`.
"""
function backward(context::Context, q, k, v, out, lse, d_out; options...)
    return backward!(similar(q), similar(k), similar(v), context, q, k, v, out, lse, d_out; options...)
end

"""
    attention_mass!(mass, context, q, k, lse; query_start=nothing, sequence_starts=nothing, sequence_lengths=nothing)

Computes [`Annulus.attention_mass`](@ref) into an array of the caller.
"""
function attention_mass!(
    mass,
    context::Context,
    q,
    k,
    lse;
    query_start::Union{Nothing,Integer} = nothing,
    sequence_starts::Numbers = nothing,
    sequence_lengths::Numbers = nothing,
)
    names = (query_start = query_start, sequence_starts = sequence_starts, sequence_lengths = sequence_lengths)
    with_tensors(context, ("q", q, 4), ("k", k, 4), ("lse", lse, 3), ("mass", mass, 3)) do tensors...
        with_options(options -> check(LibAnnulus.annulus_attention_mass(context, tensors..., options)); names...)
    end
    return mass
end

"""
    mass = Annulus.attention_mass(context, q, k, lse; options...)

Computes how much each key is attended to: the sum over the queries of their probabilities, of size (N, H, B), Float32 (Float64
for Float64). `q`, `k`, `lse` and `options` are those of [`forward`](@ref) with the same config. The masses of a head add up to
the number of queries that attend to any key, less the probabilities that `:zero_keys` padding takes. It costs about as much as
forward. With `query_start` the sum is over the queries in `q`. In a context with a communicator the sum is over the queries of
all ranks, and the rank gets the mass of its own keys.
"""
function attention_mass(context::Context, q, k, lse; options...)
    mass = similar(q, lse_type(eltype(q)), (size(k, 3), size(q, 2), size(q)[4:end]...))
    return attention_mass!(mass, context, q, k, lse; options...)
end

"""
    merge!(out, lse, context, outs, lses)

Computes [`Annulus.merge`](@ref) into arrays of the caller, which may be a part's arrays; `lse` may be `nothing`.
"""
function merge!(out, lse, context::Context, outs, lses)
    count = length(outs)
    count == length(lses) || throw(argument_error("there are $count outs and $(length(lses)) lses; they must be equally many"))
    named(name, arrays, rank) = [("$name[$i]", x, rank) for (i, x) in enumerate(arrays)]
    arrays = (("out", out, 4), ("lse", lse, 3), named("outs", outs, 4)..., named("lses", lses, 3)...)
    with_tensors(context, arrays...) do out_tensor, lse_tensor, parts...
        tensors = LibAnnulus.annulus_tensor[part[] for part in parts]
        part_outs, part_lses = tensors[1:count], tensors[count+1:end]
        check(LibAnnulus.annulus_merge(context, count, part_outs, part_lses, out_tensor, lse_tensor, C_NULL))
    end
    return out, lse
end

"""
    out, lse = Annulus.merge(context, outs, lses)

Merges results over different keys, for the same queries, into the result of one softmax over all keys. `outs` are from 1 to
48 arrays of size (D, H, Nq, B). `lses` has an array of size (Nq, H, B) for each, in natural logarithms. If a row's LSE is -Inf,
the part counts for nothing in that row. A key that is in two parts counts twice. The config is not read.

Gradients: [`backward`](@ref) on a part, with the merged `out` and `lse`, gives the gradients of the part's keys and values and
its summand of d_q.
"""
function merge(context::Context, outs, lses)
    isempty(outs) && throw(argument_error("outs is empty; there must be at least one part"))
    return merge!(similar(first(outs)), similar(first(lses)), context, outs, lses)
end

# Contexts of attention() that no call uses at the moment, by config and device. The context that was used last is last.
const CACHED_CONTEXTS = Pair{Any,Context}[]
const CACHED_CONTEXTS_LOCK = ReentrantLock()
const MAX_CACHED_CONTEXTS = 64

"""
Calls `f` with a context for a config on the device of `q`. Takes the context of an earlier call if there is one, since its
plans are already made. No other task uses the context meanwhile.
"""
function with_cached_context(f, config::Config, q)
    device, index = place_of(q)
    key = (branches(config), options(config), device, index)
    context = lock(CACHED_CONTEXTS_LOCK) do
        found = findlast(entry -> isequal(first(entry), key), CACHED_CONTEXTS)
        found === nothing ? nothing : last(splice!(CACHED_CONTEXTS, found))
    end
    if context === nothing
        context = Context(config; device = device, index = index)
    end
    try
        return f(context)
    finally
        lock(CACHED_CONTEXTS_LOCK) do
            push!(CACHED_CONTEXTS, key => context)
            length(CACHED_CONTEXTS) > MAX_CACHED_CONTEXTS && close(last(popfirst!(CACHED_CONTEXTS)))
        end
    end
end

"""
    out = attention(q, k, v; branches=[(2048, 1), (8192, 4)], causal=true, return_lse=false, query_start=nothing,
                    sequence_starts=nothing, sequence_lengths=nothing, options...)

Computes dilated attention in one call, on the device of the arrays. `q` and `out` are of size (D, H, N, B), `k` and `v` of
size (D, G, N, B); they are not copied, see [`forward`](@ref). `branches` and `options` are those of [`Config`](@ref). With
`return_lse` the result is `(out, lse)`. Later calls with the same config and device use the same context.

If ChainRulesCore is loaded (Julia 1.9 or newer), there is a rule for reverse mode, which Zygote, for one, uses.
"""
function attention(
    q,
    k,
    v;
    branches,
    return_lse::Bool = false,
    query_start::Union{Nothing,Integer} = nothing,
    sequence_starts::Numbers = nothing,
    sequence_lengths::Numbers = nothing,
    options...,
)
    rows = (query_start = query_start, sequence_starts = sequence_starts, sequence_lengths = sequence_lengths)
    return with_cached_context(Config(branches; options...), q) do context
        out = similar(q)
        lse = return_lse ? similar(q, lse_type(eltype(q)), lse_size(q)) : nothing
        forward!(out, lse, context, q, k, v; rows...)
        return return_lse ? (out, lse) : out
    end
end

"""
    out, lse, gradients = attention_with_gradients(q, k, v; branches, options...)

Computes [`attention`](@ref), and returns with the results a function for rules of automatic differentiation. The function
takes `d_out` and `d_lse` (an array, or `nothing` for zeros) and returns `(d_q, d_k, d_v)`. Until then q, k, v, out and lse must
not change.
"""
function attention_with_gradients(
    q,
    k,
    v;
    branches,
    query_start::Union{Nothing,Integer} = nothing,
    sequence_starts::Numbers = nothing,
    sequence_lengths::Numbers = nothing,
    options...,
)
    rows = (query_start = query_start, sequence_starts = sequence_starts, sequence_lengths = sequence_lengths)
    config = Config(branches; options...)
    out, lse = with_cached_context(context -> forward(context, q, k, v; rows...), config, q)
    # Gradients of sums and broadcasts are arrays without memory of their own.
    in_memory(d, like) = d isa DenseArray{eltype(like)} ? d : copyto!(similar(like), d)
    function gradients(d_out, d_lse)
        d_out = d_out === nothing ? fill!(similar(out), 0) : in_memory(d_out, out)
        d_lse = d_lse === nothing ? nothing : in_memory(d_lse, lse)
        return with_cached_context(config, q) do context
            backward(context, q, k, v, out, lse, d_out; d_lse = d_lse, rows...)
        end
    end
    return out, lse, gradients
end

"Returns how many CPU threads a call may use now: the number that was set, or the default. 1 on a CUDA device."
function threads(context::Context)
    count = Ref{Int32}(0)
    check(LibAnnulus.annulus_context_get_threads(context, count))
    return Int(count[])
end

"Returns the engine that computed the context's last call, such as `:cpu`; `:auto` before the first."
function last_engine(context::Context)
    engine = Ref{LibAnnulus.annulus_engine}(0)
    check(LibAnnulus.annulus_context_last_engine(context, engine))
    return engine_name(engine[])
end

"Returns the bytes of rows that the context's last call sent to and received from other ranks."
function last_traffic(context::Context)
    traffic = Ref(LibAnnulus.ANNULUS_TRAFFIC_INIT)
    check(LibAnnulus.annulus_context_last_traffic(context, traffic))
    return (sent_bytes = traffic[].sent_bytes, received_bytes = traffic[].received_bytes)
end

"""
    estimate(context; sequence_length, heads, head_dim, pass=:forward, kv_heads=heads, batch=1, eltype=Float32,
             branch=nothing, sequence_starts=nothing, sequence_lengths=nothing, row_alignment=0, add=(),
             gradient_eltype=eltype)

Returns what a pass, `:forward`, `:backward` or `:mass`, of a problem costs under the context's config, without its data: a
named tuple of pairs, flops, bytes and the exchange, `:auto` for one rank. `branch`, counted from 1: counts only the pairs and
flops of that branch. In a context with a communicator the sizes are those of all ranks together, and the costs are this rank's.
`sequence_starts`, `sequence_lengths`: as [`forward`](@ref) takes them. `row_alignment`: every row of the call's arrays begins at
a multiple of that number of bytes; 0: not known. `add`: as [`Annulus.backward!`](@ref) takes it. `gradient_eltype`: Float32 if
one of the gradients is.
"""
function estimate(
    context::Context;
    sequence_length::Integer,
    heads::Integer,
    head_dim::Integer,
    pass::Symbol = :forward,
    kv_heads::Integer = heads,
    batch::Integer = 1,
    eltype::Type = Float32,
    branch::Union{Nothing,Integer} = nothing,
    sequence_starts::Numbers = nothing,
    sequence_lengths::Numbers = nothing,
    row_alignment::Integer = 0,
    add = (),
    gradient_eltype::Type = eltype,
)
    types = (element_code(eltype), element_code(gradient_eltype))
    sizes = (types..., heads, kv_heads, head_dim, batch, sequence_length, 0, row_alignment)
    result = Ref(LibAnnulus.ANNULUS_ESTIMATE_INIT)
    which = pick("pass", pass, PASSES)
    index = branch === nothing ? LibAnnulus.ANNULUS_ALL_BRANCHES : branch - 1
    names = (query_start = nothing, sequence_starts = sequence_starts, sequence_lengths = sequence_lengths, add = add)
    with_options(; names...) do options
        GC.@preserve options begin
            address = Base.unsafe_convert(Ptr{LibAnnulus.annulus_call_options}, options)
            problem = LibAnnulus.annulus_problem(sizeof(LibAnnulus.annulus_problem), sizes..., address)
            check(LibAnnulus.annulus_estimate_problem(context, Ref(problem), which, index, result))
        end
    end
    names = filter(name -> name ∉ (:size, :exchange), fieldnames(LibAnnulus.annulus_estimate))
    numbers = NamedTuple{names}(map(name -> getfield(result[], name), names))
    return (; numbers..., exchange = name_of(result[].exchange, EXCHANGES))
end

const PASSES =
    (forward = LibAnnulus.ANNULUS_PASS_FORWARD, backward = LibAnnulus.ANNULUS_PASS_BACKWARD, mass = LibAnnulus.ANNULUS_PASS_MASS)

"""
    hilbert_curve(length; width=0)

Returns the order of the positions in a segment with `order=:hilbert`: element p is the p-th position along the curve, counted
from 1. The `length` positions fill a grid with `width` columns, row by row; 0: the smallest divisor of `length` that is at least
its square root.
"""
function hilbert_curve(length::Integer; width::Integer = 0)
    positions = Vector{Int64}(undef, max(length, 0))
    check(LibAnnulus.annulus_hilbert_curve(length, width, positions))
    return positions .+= 1
end

"Returns the loaded library's version."
version() = VersionNumber(unsafe_string(LibAnnulus.annulus_version_string()))

"Returns one line for bug reports: versions of the library, its compiler and CUDA."
build_info() = unsafe_string(LibAnnulus.annulus_build_info())
