# SPDX-License-Identifier: Apache-2.0
using Annulus, Test

"Returns the error that f throws, or nothing."
function thrown(f)
    try
        f()
    catch error
        return error
    end
    return nothing
end

const X = rand(Float32, 16, 4, 64, 1)
pairs_of(x) = attention(x, x, x; branches = [(16, 1), (64, 4)])

@testset "errors" begin
    error = thrown(() -> Annulus.Config([(16, 1), (-1, 1)]))
    @test error isa AnnulusError
    @test error.status == Annulus.LibAnnulus.ANNULUS_ERROR_ARGUMENT
    @test Annulus.status_name(error) === :argument
    @test (error.library, error.code) == ("", 0)
    @test occursin("segment_length is -1", error.message)
    @test sprint(showerror, error) == "AnnulusError (argument): " * error.message
    @test Annulus.status_name(AnnulusError(12345, "")) === :unknown # a status of a newer library is kept

    error = thrown(() -> attention(X, X, X; branches = [(16, 1)], workspace_limit = 1))
    @test Annulus.status_name(error) === :workspace
    @test attention(X, X, X; branches = [(16, 1)], workspace_limit = error.bytes) isa Array

    for bad in (
        () -> pairs_of(rand(Float32, 12, 4, 64, 1)), # D
        () -> pairs_of(rand(Float32, 64)), # dimensions
        () -> pairs_of(rand(Int32, 16, 4, 64, 1)), # elements
        () -> pairs_of(PermutedDimsArray(X, (2, 1, 3, 4))), # D is not the fastest
        () -> pairs_of(view(X, :, :, 64:-1:1, :)), # a stride below 0
        () -> attention(X, X[:, 1:3, :, :], X; branches = [(16, 1)]),
        () -> attention(X, X, X; branches = []),
        () -> attention(X, X, X; branches = [(16, 1)], engine = :nonsense),
        () -> attention(X, X, X; branches = [(16, 1)], padding = :nonsense),
        () -> attention(X, X, X; branches = [Annulus.Branch(16, 1; phase = :nonsense)]),
        () -> attention(X, X, X; branches = [Annulus.Branch(16, 1; heads = 3:5)]),
        () -> attention(X, X, X; branches = [(16, 1)], query_start = 2),
        () -> attention(X, X, X; branches = [(16, 1)], sequence_starts = [0, 65]),
        () -> attention(X, X, X; branches = [(16, 1)], sequence_starts = Int[]),
        () -> attention(X, X, X; branches = [(16, 1)], sequence_lengths = [65]),
        () -> attention(X, X, X; branches = [(16, 1)], sequence_starts = [1, 65], sequence_lengths = [1, 2]),
        () -> Annulus.hilbert_curve(0),
        () -> Annulus.hilbert_curve(-1),
        () -> Annulus.Context(Annulus.Config([(16, 1)]); device = :abacus),
        () -> Annulus.local_comms(0),
    )
        @test thrown(bad) isa AnnulusError
    end

    # Messages name dimensions as Julia counts them.
    context, lse = Annulus.Context(Annulus.Config([(16, 1)])), zeros(Float32, 9, 4, 1)
    for (words, bad) in (
        "size(q, 1) is 12; " => () -> pairs_of(rand(Float32, 12, 4, 64, 1)),
        "stride(q, 1) is " => () -> pairs_of(PermutedDimsArray(X, (2, 1, 3, 4))),
        "stride(q, 3) is -64; " => () -> pairs_of(view(X, :, :, 64:-1:1, :)),
        "size(k, 2) is 3; " => () -> attention(X, X[:, 1:3, :, :], X; branches = [(16, 1)]),
        "size(q, 3) is 64 and size(k, 3) is 9; " => () -> attention(X, X[:, :, 1:9, :], X[:, :, 1:9, :]; branches = [(16, 1)]),
        "size(lse, 1) is 9; it must be 64" => () -> Annulus.attention_mass(context, X, X, lse),
    )
        error = thrown(bad)
        @test error isa AnnulusError
        @test startswith(error.message, words)
    end

    context = Annulus.Context(Annulus.Config([(16, 1)]))
    close(context)
    close(context)
    @test thrown(() -> Annulus.forward(context, X, X, X)) isa AnnulusError
end

@testset "costs, curves, presets" begin
    context = Annulus.Context(Annulus.gigapath())
    problem = (sequence_length = 70_001, heads = 16, head_dim = 48)
    whole = Annulus.estimate(context; problem...)
    @test whole.flops == 4 * 48 * whole.pairs > 1e12
    @test whole.exchange === :auto
    for (pass, factor) in ((:backward, 10), (:mass, 4))
        @test Annulus.estimate(context; pass = pass, problem...).flops == factor * 48 * whole.pairs
    end
    @test thrown(() -> Annulus.estimate(context; pass = :all, problem...)) isa AnnulusError
    @test whole.pairs == sum(Annulus.estimate(context; branch = i, problem...).pairs for i = 1:5)
    @test thrown(() -> Annulus.estimate(context; branch = 6, problem...)) isa AnnulusError
    @test thrown(() -> Annulus.estimate(context; row_alignment = 24, problem...)) isa AnnulusError
    @test thrown(() -> Annulus.estimate(context; sequence_lengths = [70_002], problem...)) isa AnnulusError
    @test Annulus.estimate(context; row_alignment = 16, problem...) == whole
    @test length(Annulus.Config(Annulus.longnet(16, 2, 2, 3))) == 3
    @test length(Annulus.Config(Annulus.head_groups(4, [(16, 1), (64, 4)]))) == 2
    branches = [
        Annulus.Branch(24, 5),
        Annulus.Branch(0, 7; heads = 4:5, phase = 9, query = :every),
        Annulus.Branch(60, 4; heads = 6:typemax(Int32), phase = :interleave, query = :residue, order = :hilbert, grid_width = 12),
        Annulus.window(5, -1; dilation = 3, heads = 4:5, phase = 9, query = :dilated),
        Annulus.global_tokens(9:10; queries = true),
    ]
    wanted = (
        causal = true,
        scale = -0.3,
        padding = :zero_keys,
        key_rule = :once,
        head_shard = (4, 9),
        engine = :reference,
        allow_tf32 = true,
        workspace_limit = 2^40,
        exchange = :ring,
    )
    config = Annulus.Config(branches; wanted...)
    for read in (config, Annulus.config(Annulus.Context(config)))
        @test all(Annulus.branches(read) .== branches)
        @test Annulus.options(read) == wanted
    end
    @test Annulus.options(Annulus.gigapath()).padding === :zero_keys
    @test only(Annulus.branches(Annulus.sliding(511; dilation = 2))) == Annulus.window(511, 0; dilation = 2)
    @test Annulus.options(Annulus.sliding(511)).causal && !Annulus.options(Annulus.sliding(7; right = 7)).causal
    longformer = Annulus.longformer(256; tokens = 3)
    @test all(Annulus.branches(longformer) .== [Annulus.window(256, 256), Annulus.global_tokens(1:3; queries = true)])
    @test Annulus.options(longformer).key_rule === :once
    @test length(Annulus.branches(Annulus.longformer(256; tokens = 0))) == 1
    @test_throws AnnulusError Annulus.longformer(256; tokens = -1)
    @test Annulus.options(Annulus.Config([(16, 1)])).scale === nothing
    @test thrown(() -> Annulus.Config([Annulus.Branch(16, 1; heads = 2:1)])) isa AnnulusError
    @test Annulus.options(Annulus.Config([(16, 1)])).head_shard === nothing
    @test_throws ArgumentError Annulus.Config([(16, 1)]; head_shard = (0, 4))
    @test Annulus.hilbert_curve(4; width = 2) == [1, 3, 4, 2]
    @test sort(Annulus.hilbert_curve(35)) == 1:35
    @test Annulus.device_count(:cpu) == 1
    @test occursin(string(Annulus.version()), Annulus.build_info())
    @test occursin("gradients", string(@doc Annulus.backward))
    @test occursin("LSE", string(@doc Annulus.LibAnnulus.annulus_forward))
end
