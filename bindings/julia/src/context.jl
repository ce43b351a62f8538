# SPDX-License-Identifier: Apache-2.0

"""
    Context(config; device=:cpu, index=0, threads=0, comm=nothing, shards=nothing, owners=nothing)

A device with a config: what [`forward`](@ref) and [`backward`](@ref) work on. `device` is `:cpu` or `:cuda`, `index` its
number as CUDA counts, from 0. `threads`: how many CPU threads a call may use; 0 is what `ANNULUS_NUM_THREADS` says, or
one for each CPU that the process may use.

`comm` is a [`Comm`](@ref), and `shards` how many positions each rank holds, which calls then check; `nothing`: each has
what its arrays hold, of any lengths. With `owners`, shard `i` of the sequence has `shards[i]` positions and belongs to
rank `owners[i]`, counted from 0; a rank with several has their rows one behind the other in its arrays.

One task at a time uses a context; several contexts work at the same time in several threads. It is destroyed by the
garbage collector, or at once by `close(context)`.
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
    comm === nothing || release(comm) # after the context that used it
    return nothing
end

Base.cconvert(::Type{Ptr{LibAnnulus.annulus_context}}, context::Context) = context
Base.unsafe_convert(::Type{Ptr{LibAnnulus.annulus_context}}, context::Context) = context.handle

Base.show(io::IO, context::Context) = print(io, "Annulus.Context on ", context.place[1], " ", context.place[2])

"The config of a context, a copy."
function config(context::Context)
    return Config(made(reference -> LibAnnulus.annulus_context_copy_config(reference, context)))
end

"The number of devices of a kind, `:cpu` or `:cuda`, that the library can use on this machine."
function device_count(device::Symbol)
    count = Ref{Int32}(0)
    check(LibAnnulus.annulus_device_count(pick("device", device, DEVICES), count))
    return Int(count[])
end

"Calls `f` with C's tensors of named arrays (or C_NULL for `nothing`) while the arrays are kept alive."
function with_tensors(f, context::Context, arrays...)
    for (name, x, _) in arrays
        x === nothing || place_of(x) == context.place ||
            throw(argument_error("$name is on $(join(place_of(x), " ")), the context on $(join(context.place, " "))"))
    end
    context.place[1] === :cpu || check(LibAnnulus.annulus_context_set_stream(context, stream_of(arrays[1][2])))
    kept = map(array -> array[2], arrays)
    GC.@preserve kept begin
        tensors = map(((name, x, rank),) -> x === nothing ? C_NULL : Ref(tensor(name, x, rank)), arrays)
        f(tensors...)
    end
end

const Numbers = Union{Nothing,AbstractVector{<:Integer}}

"Integers of the caller's in host memory, less what C counts from."
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

"Calls `f` with C's options, which count positions from 0, while their arrays are kept alive."
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

As [`forward`](@ref), into arrays of the caller's; `lse` may be `nothing`.
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

Attention of `q`, of size (D, H, Nq, B), over `k` and `v`, of size (D, G, N, B): `out` has q's size, `lse`, the logarithms of
the softmax's denominators, is (Nq, H, B), Float32 (Float64 for Float64).

Julia's arrays are column-major: the first index runs fastest. The C API (and NumPy, PyTorch) say [B, N, H, D] of the same
bytes. **Nothing is copied or permuted**: an array of size (D, H, N, B) *is* C's [B, N, H, D]. D is the head dimension (a
multiple of 8 up to 256), H the query heads, G the key/value heads (G divides H), N positions, B the batch; the last
dimension may be left out where B is 1. Strided views are used in place as long as the stride of D is 1.

`query_start`: `q` holds the positions `query_start`, `query_start + 1`, … (counted from 1) of the N, for example one token
decoded against a cache; `nothing`: it holds all of them.

`sequence_starts`, `sequence_lengths`: the sequences that the N rows consist of; `nothing`: one for each batch entry. With
starts (one more than there are sequences) sequence i has the rows `starts[i]` to `starts[i+1] - 1`, counted from 1, of every
batch entry, and with lengths only the first `lengths[i]` of them. With lengths alone batch entry b is a sequence of its first
`lengths[b]` rows. Branches count inside each sequence; rows of none have `out` 0 and `lse` -Inf. Vectors in host memory.
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

As [`backward`](@ref), into arrays of the caller's, each of q's element type or, where that has 16 bits, Float32. They are
overwritten, but for those named in `add`, such as `(:d_k, :d_v)`, to which the gradient is added with one rounding.
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

The gradients of [`forward`](@ref), whose arguments, `options` and results are passed, given the gradient `d_out` of `out` and, where it
is not `nothing`, `d_lse` of `lse`. Gradients have the sizes of what they are gradients of.
"""
function backward(context::Context, q, k, v, out, lse, d_out; options...)
    return backward!(similar(q), similar(k), similar(v), context, q, k, v, out, lse, d_out; options...)
end

"""
    attention_mass!(mass, context, q, k, lse; query_start=nothing, sequence_starts=nothing, sequence_lengths=nothing)

As [`Annulus.attention_mass`](@ref), into an array of the caller's.
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

How much each key is attended to: of size (N, H, B), the sum over the queries of the probabilities that they give it, Float32
(Float64 for Float64). `q`, `k`, `lse` and `options` are those of [`forward`](@ref) with the same config. The masses of a head
add up to the number of queries that attend to anything, less what `:zero_keys` padding takes. It costs about as much as
forward. With `query_start` the queries are those of `q` alone; in a context with a communicator they are those of all ranks,
and the rank gets the mass of its own keys.
"""
function attention_mass(context::Context, q, k, lse; options...)
    mass = similar(q, lse_type(eltype(q)), (size(k, 3), size(q, 2), size(q)[4:end]...))
    return attention_mass!(mass, context, q, k, lse; options...)
end

"""
    merge!(out, lse, context, outs, lses)

As [`Annulus.merge`](@ref), into arrays of the caller's, which may be those of a part; `lse` may be `nothing`.
"""
function merge!(out, lse, context::Context, outs, lses)
    count = length(outs)
    count == length(lses) || throw(argument_error("there are $count outs and $(length(lses)) lses; they must be equally many"))
    named(name, arrays, rank) = [("$name[$i]", x, rank) for (i, x) in enumerate(arrays)]
    arrays = (("out", out, 4), ("lse", lse, 3), named("outs", outs, 4)..., named("lses", lses, 3)...)
    with_tensors(context, arrays...) do out_tensor, lse_tensor, parts...
        tensors = LibAnnulus.annulus_tensor[part[] for part in parts]
        outs_of_parts, lses_of_parts = tensors[1:count], tensors[count+1:end]
        check(LibAnnulus.annulus_merge(context, count, outs_of_parts, lses_of_parts, out_tensor, lse_tensor, C_NULL))
    end
    return out, lse
end

"""
    out, lse = Annulus.merge(context, outs, lses)

Results over different keys, of the same queries, as those of one softmax over all the keys: `outs` are arrays of size
(D, H, Nq, B), from 1 to 48, `lses` as many of (Nq, H, B), natural logarithms. A part whose LSE is -Inf counts for nothing,
and a key that two parts have counts twice. The context's config is not looked at.

Gradients: [`backward`](@ref) of each part with the merged `out` and `lse` gives those of its keys, and its share of d_q.
"""
function merge(context::Context, outs, lses)
    isempty(outs) && throw(argument_error("outs is empty; there must be at least one part"))
    return merge!(similar(first(outs)), similar(first(lses)), context, outs, lses)
end

# Contexts of attention() that no call uses at the moment, with what they compute and where; the one used last is last.
const KEPT_CONTEXTS = Pair{Any,Context}[]
const KEPT_CONTEXTS_LOCK = ReentrantLock()
const MOST_KEPT_CONTEXTS = 64

"""
Calls `f` with a context for a config on the device of `q`: one of an earlier call, so that what was prepared for its
arrays serves again. Each task has its own while it computes.
"""
function with_kept_context(f, config::Config, q)
    device, index = place_of(q)
    key = (branches(config), options(config), device, index)
    context = lock(KEPT_CONTEXTS_LOCK) do
        found = findlast(kept -> isequal(first(kept), key), KEPT_CONTEXTS)
        found === nothing ? nothing : last(splice!(KEPT_CONTEXTS, found))
    end
    if context === nothing
        context = Context(config; device = device, index = index)
    end
    try
        return f(context)
    finally
        lock(KEPT_CONTEXTS_LOCK) do
            push!(KEPT_CONTEXTS, key => context)
            length(KEPT_CONTEXTS) > MOST_KEPT_CONTEXTS && close(last(popfirst!(KEPT_CONTEXTS)))
        end
    end
end

"""
    out = attention(q, k, v; branches=[(2048, 1), (8192, 4)], causal=true, return_lse=false, query_start=nothing,
                    sequence_starts=nothing, sequence_lengths=nothing, options...)

Dilated attention in one call, on the device of the arrays: `q`, `out` of size (D, H, N, B), `k` and `v` (D, G, N, B), used
without a copy; see [`forward`](@ref). `branches` and `options` are those of [`Config`](@ref). With `return_lse` the
result is `(out, lse)`. The context of a call is kept for later ones that compute the same.

Where ChainRulesCore is loaded (Julia 1.9 or newer), it has a rule for reverse mode, which Zygote, for one, uses.
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
    return with_kept_context(Config(branches; options...), q) do context
        out = similar(q)
        lse = return_lse ? similar(q, lse_type(eltype(q)), lse_size(q)) : nothing
        forward!(out, lse, context, q, k, v; rows...)
        return return_lse ? (out, lse) : out
    end
end

"""
    out, lse, gradients = attention_with_gradients(q, k, v; branches, options...)

The results of [`attention`](@ref), and a function of `d_out` and `d_lse` (an array, or `nothing` for zeros) that gives
`(d_q, d_k, d_v)`: what rules of automatic differentiation are made of. When it is called, q, k, v, out and lse must be as
they were.
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
    out, lse = with_kept_context(context -> forward(context, q, k, v; rows...), config, q)
    # Gradients of sums and broadcasts are arrays without memory of their own.
    in_memory(d, like) = d isa DenseArray{eltype(like)} ? d : copyto!(similar(like), d)
    function gradients(d_out, d_lse)
        d_out = d_out === nothing ? fill!(similar(out), 0) : in_memory(d_out, out)
        d_lse = d_lse === nothing ? nothing : in_memory(d_lse, lse)
        return with_kept_context(config, q) do context
            backward(context, q, k, v, out, lse, d_out; d_lse = d_lse, rows...)
        end
    end
    return out, lse, gradients
end

"How many CPU threads a call may use now: what was set, or what the default comes to. 1 on a CUDA device."
function threads(context::Context)
    count = Ref{Int32}(0)
    check(LibAnnulus.annulus_context_get_threads(context, count))
    return Int(count[])
end

"The engine that served the context's last call, such as `:cpu`; `:auto` before the first."
function last_engine(context::Context)
    engine = Ref{LibAnnulus.annulus_engine}(0)
    check(LibAnnulus.annulus_context_last_engine(context, engine))
    return engine_name(engine[])
end

"The bytes of rows that the context's last call sent to and received from other ranks."
function last_traffic(context::Context)
    traffic = Ref(LibAnnulus.ANNULUS_TRAFFIC_INIT)
    check(LibAnnulus.annulus_context_last_traffic(context, traffic))
    return (sent_bytes = traffic[].sent_bytes, received_bytes = traffic[].received_bytes)
end

"""
    estimate(context; sequence_length, heads, head_dim, pass=:forward, kv_heads=heads, batch=1, eltype=Float32,
             branch=nothing, sequence_starts=nothing, sequence_lengths=nothing, row_alignment=0, add=(),
             gradient_eltype=eltype)

What a pass, `:forward`, `:backward` or `:mass`, of a problem costs under the context's config, without its data: a named tuple
of pairs, flops, bytes and the exchange, `:auto` where there is one rank. `branch`, counted from 1: pairs and flops are that
branch's share. In a context with a communicator the problem is that of all ranks, and the answer is for this one.
`sequence_starts`, `sequence_lengths`: as [`forward`](@ref) takes them. `row_alignment`: every row of the call's arrays
begins at a multiple of so many bytes; 0: not known. `add`: as [`Annulus.backward!`](@ref) takes it; `gradient_eltype`: Float32
where one of the gradients is.
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
    names = fieldnames(LibAnnulus.annulus_estimate)[2:end-1] # without size and exchange
    numbers = NamedTuple{names}(map(name -> getfield(result[], name), names))
    return (; numbers..., exchange = name_of(result[].exchange, EXCHANGES))
end

const PASSES =
    (forward = LibAnnulus.ANNULUS_PASS_FORWARD, backward = LibAnnulus.ANNULUS_PASS_BACKWARD, mass = LibAnnulus.ANNULUS_PASS_MASS)

"""
    hilbert_curve(length; width=0)

The order that `order=:hilbert` gives a segment of `length` positions, laid out on a grid with `width` columns, row by row (0:
the smallest divisor of `length` that is at least its square root): element p is the position, counted from 1, that the curve
visits p-th.
"""
function hilbert_curve(length::Integer; width::Integer = 0)
    positions = Vector{Int64}(undef, max(length, 0))
    check(LibAnnulus.annulus_hilbert_curve(length, width, positions))
    return positions .+= 1
end

"The loaded library's version."
version() = VersionNumber(unsafe_string(LibAnnulus.annulus_version_string()))

"One line for bug reports: versions of the library, its compiler and CUDA."
build_info() = unsafe_string(LibAnnulus.annulus_build_info())
