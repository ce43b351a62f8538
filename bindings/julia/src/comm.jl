# SPDX-License-Identifier: Apache-2.0

"A communicator's handle, with a count of its users: the Comm and contexts. The last user's release destroys it."
struct CommHandle
    pointer::Ptr{LibAnnulus.annulus_comm}
    user_count::Threads.Atomic{Int}
end

hold(handle::CommHandle) = (Threads.atomic_add!(handle.user_count, 1); handle)

function release(handle::CommHandle)
    Threads.atomic_sub!(handle.user_count, 1) == 1 && LibAnnulus.annulus_comm_destroy(handle.pointer)
    return nothing
end

"""
    Comm

One rank's end of a communicator. With `comm` in its [`Context`](@ref), several ranks share one sequence, and `forward` and
`backward` are collective: every rank makes the same calls, in the same order, with its own shard of the sequence.

    comms = Annulus.local_comms(ranks)

makes the ends of a communicator between `ranks` threads of this process, one for each. Calls wait for one another, so Julia
needs at least `ranks` threads (`julia -t`).
"""
mutable struct Comm
    handle::Union{Nothing,CommHandle}

    function Comm(pointer::Ptr{LibAnnulus.annulus_comm})
        comm = new(CommHandle(pointer, Threads.Atomic{Int}(1)))
        return finalizer(close, comm)
    end
end

"Drops the communicator. It lives on until the contexts that use it are closed."
function Base.close(comm::Comm)
    handle = comm.handle
    comm.handle = nothing
    handle === nothing || release(handle)
    return nothing
end

function pointer_of(comm::Comm)
    comm.handle === nothing && throw(argument_error("the Comm has been closed"))
    return comm.handle.pointer
end

Base.cconvert(::Type{Ptr{LibAnnulus.annulus_comm}}, comm::Comm) = comm
Base.unsafe_convert(::Type{Ptr{LibAnnulus.annulus_comm}}, comm::Comm) = pointer_of(comm)

"Makes the ends of a communicator between `ranks` threads of this process. See [`Comm`](@ref)."
function local_comms(ranks::Integer)
    1 <= ranks <= 4096 || throw(argument_error("ranks is $ranks; it may be 1 to 4096"))
    pointers = fill(Ptr{LibAnnulus.annulus_comm}(C_NULL), ranks)
    check(LibAnnulus.annulus_comm_create_local(pointers, ranks, C_NULL))
    return map(Comm, pointers)
end

"Returns the number of ranks."
function comm_size(comm::Comm)
    number = Ref{Int32}(0)
    check(LibAnnulus.annulus_comm_size(comm, number))
    return Int(number[])
end

"Returns the rank of this end, from 0."
function comm_rank(comm::Comm)
    number = Ref{Int32}(0)
    check(LibAnnulus.annulus_comm_rank(comm, number))
    return Int(number[])
end

"Sets how many seconds a call waits for another rank before it fails; 300 by default."
set_timeout!(comm::Comm, seconds) = check(LibAnnulus.annulus_comm_set_timeout(comm, seconds))

"Breaks the communicator: calls that wait for a rank, in any thread, throw."
abort(comm::Comm) = check(LibAnnulus.annulus_comm_abort(comm))

"""
Returns why the communicator broke, as an `AnnulusError`, or `nothing` if it is usable as far as this rank knows. Any thread may
call it, and it never waits. A broken communicator stays broken: make a new one.
"""
function failure(comm::Comm)
    status = Ref(LibAnnulus.ANNULUS_OK)
    check(LibAnnulus.annulus_comm_status(comm, status))
    return error_of(status[])
end
