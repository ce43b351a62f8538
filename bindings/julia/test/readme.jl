# SPDX-License-Identifier: Apache-2.0
# Runs the Julia example of README.md.
using Test

page = read(joinpath(@__DIR__, "..", "..", "..", "README.md"), String)
example = Module(:Example)
for block in eachmatch(r"^```julia\n(.*?)^```$"ms, page)
    Base.include_string(example, block[1])
end

@testset "the gradients along q and along k are the same sum" begin
    products = example.q .* example.d_q
    @test isapprox(sum(products), sum(example.k .* example.d_k); atol = 1e-5 * sum(abs, products))
    @test size(example.out) == size(example.q)
end
