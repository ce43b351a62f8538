# SPDX-License-Identifier: Apache-2.0
# The structs have the layout that the C compiler gives them. The environment variable ANNULUS_LAYOUT names the C program
# that prints it.
using Annulus, Test

const C = Annulus.LibAnnulus

@testset "layout" begin
    for line in eachline(`$(ENV["ANNULUS_LAYOUT"])`)
        words = split(line)
        name = split(words[1], '.')
        T = getfield(C, Symbol(name[1]))
        if length(name) == 1
            @test sizeof(T) == parse(Int, words[2])
        else
            field = findfirst(==(Symbol(name[2])), fieldnames(T))
            @test fieldoffset(T, field) == parse(Int, words[2])
            @test sizeof(fieldtype(T, field)) == parse(Int, words[3])
        end
    end
end
