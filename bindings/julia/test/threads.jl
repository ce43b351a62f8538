# SPDX-License-Identifier: Apache-2.0
# Several contexts at the same time, and ranks as threads. Needs two threads (`julia -t 2` or JULIA_NUM_THREADS=2).
using Annulus, Test

const D, H, N = 16, 4, 64
const CONFIG = Annulus.Config([(16, 1), (64, 4)]; causal = true)

@testset "contexts" begin
    x = randn(Float32, D, H, N)
    expected, _ = Annulus.forward(Annulus.Context(CONFIG), x, x, x)
    good = zeros(Bool, 8)
    Threads.@threads for i = 1:8
        context = Annulus.Context(CONFIG)
        good[i] = all(Annulus.forward(context, x, x, x)[1] == expected for _ = 1:50)
    end
    @test all(good)

    # Messages belong to the thread that failed.
    Threads.@threads for i = 1:8
        good[i] = all(1:50) do _
            try
                Annulus.Config([(-i, 1)])
                false
            catch error
                occursin("is -$i", error.message)
            end
        end
    end
    @test all(good)
end

@testset "ranks" begin
    @test Threads.nthreads() >= 2
    q, k, v, d_out = (randn(Float32, D, H, N) for _ = 1:4)
    alone = Annulus.Context(CONFIG)
    out, lse = Annulus.forward(alone, q, k, v)
    d_k = Annulus.backward(alone, q, k, v, out, lse, d_out)[2]

    shards, rows = [40, 24], [1:40, 41:64]
    comms = Annulus.local_comms(2)
    @test Annulus.comm_size(comms[1]) == 2 && Annulus.comm_rank(comms[2]) == 1
    part(x, rank) = view(x, :, :, rows[rank])
    results = Vector{Any}(undef, 2)
    function work(rank)
        context = Annulus.Context(CONFIG; comm = comms[rank], shards = shards)
        inputs = map(x -> part(x, rank), (q, k, v))
        rank == 2 && GC.gc() # while the other rank waits inside its call
        my_out, my_lse = Annulus.forward(context, inputs...)
        traffic = Annulus.last_traffic(context)
        my_d_k = Annulus.backward(context, inputs..., my_out, my_lse, part(d_out, rank))[2]
        results[rank] = (my_out, my_d_k, traffic.received_bytes)
    end
    first_rank = Threads.@spawn work(1)
    second_rank = Threads.@spawn work(2)
    foreach(wait, (first_rank, second_rank))
    @test isapprox(cat(results[1][1], results[2][1]; dims = 3), out; rtol = 1e-5)
    @test isapprox(cat(results[1][2], results[2][2]; dims = 3), d_k; rtol = 1e-5)
    @test results[1][3] == 0 && results[2][3] > 0 # causal

    # Each rank has two shards; the first and the last shard are the first rank's.
    lengths, owners = [17, 15, 20, 12], [0, 1, 1, 0]
    positions = [vcat(1:17, 53:64), 18:52]
    parts = Vector{Any}(undef, 2)
    function work_on_two(rank)
        context = Annulus.Context(CONFIG; comm = comms[rank], shards = lengths, owners = owners)
        parts[rank] = Annulus.forward(context, map(x -> x[:, :, positions[rank]], (q, k, v))...)[1]
    end
    foreach(wait, [Threads.@spawn(work_on_two(rank)) for rank = 1:2])
    @test all(isapprox(parts[rank], out[:, :, positions[rank]]; rtol = 1e-5) for rank = 1:2)
    @test_throws ArgumentError Annulus.Context(CONFIG; comm = comms[1], shards = lengths, owners = [0])

    # abort() ends the call of a rank that waits.
    pair = Annulus.local_comms(2)
    Annulus.set_timeout!(pair[1], 60) # before the call: a communicator in a call refuses it
    waiting = Threads.@spawn begin
        context = Annulus.Context(CONFIG; comm = pair[1])
        try
            Annulus.forward(context, q, k, v)
            nothing
        catch error
            error
        end
    end
    # sleep() would let this thread run the task above, and the thread would wait in the call instead of ending it.
    Libc.systemsleep(0.2)
    @test Annulus.failure(pair[1]) === nothing
    Annulus.abort(pair[1])
    @test Annulus.status_name(fetch(waiting)) === :comm
    @test Annulus.failure(pair[1]) == fetch(waiting) == Annulus.failure(pair[2])
end
