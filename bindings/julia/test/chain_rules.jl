# SPDX-License-Identifier: Apache-2.0
# The rule of ChainRulesCore for attention(). Exit status 77 (skipped) without ChainRulesCore or Julia 1.9.
if !isdefined(Base, :get_extension) || Base.find_package("ChainRulesCore") === nothing
    println("there is no ChainRulesCore, or Julia is older than 1.9")
    exit(77)
end
using Annulus, ChainRulesCore, Test

@testset "rrule" begin
    q, k, v, d_out = (randn(Float64, 16, 4, 40) for _ = 1:4)
    d_lse = randn(Float64, 40, 4)
    options = (branches = [(8, 1), (0, 3)], causal = true)
    out, lse, gradients = Annulus.attention_with_gradients(q, k, v; options...)

    result, pullback = rrule(attention, q, k, v; options...)
    @test result == out
    @test pullback(d_out) == (NoTangent(), gradients(d_out, nothing)...)
    @test pullback(@thunk(d_out)) == pullback(d_out)
    @test pullback(ZeroTangent()) == (NoTangent(), ZeroTangent(), ZeroTangent(), ZeroTangent())

    result, pullback = rrule(attention, q, k, v; return_lse = true, options...)
    @test result == (out, lse)
    @test pullback(Tangent{typeof(result)}(d_out, d_lse)) == (NoTangent(), gradients(d_out, d_lse)...)
    @test pullback(Tangent{typeof(result)}(ZeroTangent(), d_lse)) == (NoTangent(), gradients(nothing, d_lse)...)
end
