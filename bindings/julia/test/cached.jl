# SPDX-License-Identifier: Apache-2.0
# The contexts that attention() caches, and the gradients for rules of automatic differentiation.
using Annulus, Test

const X = randn(Float64, 16, 4, 40, 2)
const BRANCHES = [(8, 1), (40, 3)]

cached() = map(pair -> last(pair).handle, Annulus.CACHED_CONTEXTS)

@testset "contexts are cached" begin
    out = attention(X, X, X; branches = BRANCHES)
    @test length(cached()) == 1
    handle = only(cached())
    # Equal branches of another type find the same context; the caller may change its array of branches.
    branches = Any[Annulus.Branch(8, 1), (40, 3)]
    @test attention(X, X, X; branches = branches) == out
    @test cached() == [handle]
    branches[2] = (40, 2)
    @test attention(X, X, X; branches = branches) != out
    @test attention(X, X, X; branches = BRANCHES, causal = true) != out
    @test length(cached()) == 3 && handle in cached()
    @test attention(X, X, X; branches = BRANCHES) == out
    @test length(cached()) == 3 && last(cached()) == handle

    # A call that fails gives its context back, and does not break it.
    @test_throws AnnulusError attention(X, X[:, 1:3, :, :], X; branches = BRANCHES)
    @test attention(X, X, X; branches = BRANCHES) == out
    @test length(cached()) == 3

    tasks = [Threads.@spawn(attention(X, X, X; branches = BRANCHES)) for _ = 1:8]
    @test all(task -> fetch(task) == out, tasks)

    for length = 1:(Annulus.MAX_CACHED_CONTEXTS + 10)
        attention(X, X, X; branches = [(length, 1)])
    end
    @test length(cached()) == Annulus.MAX_CACHED_CONTEXTS
    @test all(!=(C_NULL), cached())
end

@testset "gradients" begin
    q, k, v, weights = (randn(Float64, 16, 4, 40) for _ = 1:4)
    options = (branches = [(8, 1), (0, 3)], causal = true)
    function loss(q, k, v)
        out, lse = attention(q, k, v; return_lse = true, options...)
        return sum(weights .* out) + sum(sin, lse)
    end
    out, lse, gradients = Annulus.attention_with_gradients(q, k, v; options...)
    @test out == attention(q, k, v; options...)
    found = gradients(weights, cos.(lse))
    step = 1e-6
    for i = 1:3
        direction = randn(size(q))
        moved(sign) = ntuple(j -> (q, k, v)[j] .+ (i == j) * sign * step .* direction, 3)
        slope = (loss(moved(1)...) - loss(moved(-1)...)) / 2step
        @test isapprox(sum(found[i] .* direction), slope; atol = 1e-6)
    end

    # Tangents without memory of their own, and missing tangents.
    from_ones = gradients(ones(size(out)), nothing)
    @test gradients(view(fill(1.0, 1), 1 .+ 0 .* LinearIndices(out)), nothing) == from_ones
    @test gradients(nothing, cos.(lse)) .+ gradients(weights, nothing) |> sums -> all(isapprox.(sums, found))
end
