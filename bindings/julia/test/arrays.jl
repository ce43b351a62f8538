# SPDX-License-Identifier: Apache-2.0
# Views give the same results as copies, and only outputs are written.
using Annulus, Test

const D, H, N = 16, 4, 64
const BRANCHES = [(16, 1), (64, 4)]
attend(q, k, v) = attention(q, k, v; branches = BRANCHES, causal = true, return_lse = true)

@testset "views" begin
    q, k, v = (randn(Float32, D, H, N, 2) for _ = 1:3)
    out, lse = attend(q, k, v)
    @test size(out) == (D, H, N, 2) && size(lse) == (N, H, 2)

    # Without the batch.
    first_out, first_lse = attend(q[:, :, :, 1], k[:, :, :, 1], v[:, :, :, 1])
    @test first_out == out[:, :, :, 1] && first_lse == lse[:, :, 1]
    @test attend(view(q, :, :, :, 1), view(k, :, :, :, 1), view(v, :, :, :, 1))[1] == first_out

    # Side by side in one buffer.
    packed = cat((reshape(x, D, H, 1, N, 2) for x in (q, k, v))...; dims = 3)
    parts = (view(packed, :, :, i, :, :) for i = 1:3)
    @test attend(parts...) == (out, lse)

    # Heads and positions exchanged in memory.
    exchanged = map(x -> PermutedDimsArray(permutedims(x, (1, 3, 2, 4)), (1, 3, 2, 4)), (q, k, v))
    @test attend(exchanged...) == (out, lse)

    # Every other position of a longer array; results into views.
    context = Annulus.Context(Annulus.Config(BRANCHES; causal = true))
    spread = map(x -> (y = fill(NaN32, D, H, 2N, 2); y[:, :, 1:2:end, :] = x; y), (q, k, v))
    target = fill(7.0f0, D, H, 2N, 2)
    inputs = map(x -> view(x, :, :, 1:2:2N, :), spread)
    Annulus.forward!(view(target, :, :, 1:2:2N, :), nothing, context, inputs...)
    @test target[:, :, 1:2:end, :] == out
    @test all(target[:, :, 2:2:end, :] .== 7)
    @test Annulus.last_engine(context) === :cpu
    @test Annulus.threads(Annulus.Context(Annulus.Config([(16, 1)]); threads = 3)) == 3
end

@testset "gradients" begin
    q, k, v, d_out = (randn(D, H, 24) for _ = 1:4)
    context = Annulus.Context(Annulus.Config([(8, 1), (24, 2)]; causal = true))
    value() = sum(Annulus.forward(context, q, k, v)[1] .* d_out)
    out, lse = Annulus.forward(context, q, k, v)
    gradients = Annulus.backward(context, q, k, v, out, lse, d_out)
    for (x, gradient) in zip((q, k, v), gradients), place in (1, 100, length(q))
        old = x[place]
        x[place] = old + 1e-5
        above = value()
        x[place] = old - 1e-5
        below = value()
        x[place] = old
        @test isapprox((above - below) / 2e-5, gradient[place]; atol = 1e-7, rtol = 1e-6)
    end
end

@testset "gradients that are added to" begin
    q, k, v, d_out = (Float16.(randn(D, H, 24)) for _ = 1:4)
    context = Annulus.Context(Annulus.Config([(8, 1), (24, 2)]; causal = true))
    inputs = (q, k, v, Annulus.forward(context, q, k, v)..., d_out)
    d_q, d_k, d_v = Annulus.backward!(zeros(Float32, D, H, 24), similar(k), zeros(Float32, D, H, 24), context, inputs...)
    @test (Float16.(d_q), d_k, Float16.(d_v)) == Annulus.backward(context, inputs...)
    sums = Annulus.backward!(fill(1.0f0, D, H, 24), copy(d_k), fill(2.0f0, D, H, 24), context, inputs...; add = (:d_q, :d_v))
    @test sums == (1 .+ d_q, d_k, 2 .+ d_v)
    @test_throws AnnulusError Annulus.backward!(d_q, d_k, d_v, context, inputs...; add = (:dq,))
    sizes = (sequence_length = 24, heads = H, head_dim = D, eltype = Float16)
    @test Annulus.estimate(context; sizes..., pass = :backward, gradient_eltype = Float32).tensor_bytes >
          Annulus.estimate(context; sizes..., pass = :backward).tensor_bytes
end

@testset "merge" begin
    q, k, v = (randn(D, H, N, 2) for _ = 1:3)
    part(branches) = attention(q, k, v; branches = branches, return_lse = true)
    whole, whole_lse = part(BRANCHES)
    outs, lses = zip(part(BRANCHES[1:1]), part(BRANCHES[2:2]))
    context = Annulus.Context(Annulus.Config(BRANCHES))
    out, lse = Annulus.merge(context, outs, lses)
    @test isapprox(out, whole; atol = 1e-13) && isapprox(lse, whole_lse; atol = 1e-13)
    Annulus.merge!(outs[2], lses[2], context, outs, lses) # in place
    @test outs[2] == out && lses[2] == lse
    @test_throws AnnulusError Annulus.merge(context, outs, lses[1:1])
    @test_throws AnnulusError Annulus.merge(context, (), ())
end
