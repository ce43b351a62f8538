# SPDX-License-Identifier: Apache-2.0
# Memory does not grow with objects that were left to the garbage collector or closed.
using Annulus, Test

resident_bytes() = parse(Int, split(read("/proc/self/statm", String))[2]) * 4096

const X = rand(Float32, 16, 4, 64)

function cycle(close_it)
    config = Annulus.Config([(16, 1), (64, 4)])
    comm = Annulus.local_comms(2)[1]
    context = Annulus.Context(config; comm = comm)
    alone = Annulus.Context(config)
    Annulus.forward(alone, X, X, X)
    try
        Annulus.Config([(-1, 1)])
    catch
    end
    close_it && foreach(close, (context, comm, alone))
    return nothing
end

function cycles(count)
    for i = 1:count
        cycle(isodd(i))
        i % 100 == 0 && GC.gc()
    end
    return resident_bytes()
end

@testset "memory" begin
    before = cycles(200)
    grown = cycles(1000) - before
    # A leak of one context with its plan and threads, some KiB, would be several MiB.
    @test grown < 4 << 20
end
