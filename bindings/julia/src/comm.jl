# SPDX-License-Identifier: Apache-2.0

"A communicator's handle, destroyed when the last of the Comm and the contexts that use it lets go."
struct CommHandle
    pointer::Ptr{LibAnnulus.annulus_comm}
    users::Threads.Atomic{Int}
end

hold(handle::CommHandle) = (Threads.atomic_add!(handle.users, 1); handle)

function release(handle::CommHandle)
    Threads.atomic_sub!(handle.users, 1) == 1 && LibAnnulus.annulus_comm_destroy(handle.pointer)
    return nothing
end

"""
    Comm

One rank's end of a communicator: several ranks share one sequence. Given to a [`Context`](@ref) as `comm`, it makes
`forward` and `backward` collective: every rank calls, in the same order, with its own shard of the sequence.

    comms = Annulus.local_comms(ranks)

makes the ends of a communicator between `ranks` threads of this process, one each. Calls wait for one another, so Julia
must have been started with at least that many threads (`julia -t`).
"""
mutable struct Comm
    handle::Union{Nothing,CommHandle}

    function Comm(pointer::Ptr{LibAnnulus.annulus_comm})
        comm = new(CommHandle(pointer, Threads.Atomic{Int}(1)))
        return finalizer(close, comm)
    end
end

"Lets go of the communicator. Contexts that use it keep it until they are closed."
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

"The ends of a communicator between `ranks` threads of this process. See [`Comm`](@ref)."
function local_comms(ranks::Integer)
    1 <= ranks <= 4096 || throw(argument_error("ranks is $ranks; it may be 1 to 4096"))
    pointers = fill(Ptr{LibAnnulus.annulus_comm}(C_NULL), ranks)
    check(LibAnnulus.annulus_comm_create_local(pointers, ranks, C_NULL))
    return map(Comm, pointers)
end

"The number of ranks."
function comm_size(comm::Comm)
    number = Ref{Int32}(0)
    check(LibAnnulus.annulus_comm_size(comm, number))
    return Int(number[])
end

"The rank of this end, from 0."
function comm_rank(comm::Comm)
    number = Ref{Int32}(0)
    check(LibAnnulus.annulus_comm_rank(comm, number))
    return Int(number[])
end

"Sets how many seconds a call waits for another rank before it fails; 300 unless set."
set_timeout!(comm::Comm, seconds) = check(LibAnnulus.annulus_comm_set_timeout(comm, seconds))

"Breaks the communicator: calls of any thread that wait in it throw."
abort(comm::Comm) = check(LibAnnulus.annulus_comm_abort(comm))

"""
Why the communicator broke, an `AnnulusError`, or `nothing` where it is usable as far as this rank knows. Any thread;
never waits. A broken communicator stays so: make a new one.
"""
function failure(comm::Comm)
    status = Ref(LibAnnulus.ANNULUS_OK)
    check(LibAnnulus.annulus_comm_status(comm, status))
    return error_of(status[])
end
