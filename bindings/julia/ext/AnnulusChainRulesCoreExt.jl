# SPDX-License-Identifier: Apache-2.0
# The rule for reverse mode of attention(). There are no gradients of gradients.
module AnnulusChainRulesCoreExt

using Annulus, ChainRulesCore

"Returns the array of a tangent, or nothing if the tangent is zero."
function array_of(tangent)
    tangent = unthunk(tangent)
    return tangent isa AbstractZero ? nothing : tangent
end

function ChainRulesCore.rrule(::typeof(Annulus.attention), q, k, v; return_lse::Bool = false, options...)
    out, lse, gradients = Annulus.attention_with_gradients(q, k, v; options...)
    function attention_pullback(tangent)
        tangent = unthunk(tangent)
        tangent isa AbstractZero && return (NoTangent(), ZeroTangent(), ZeroTangent(), ZeroTangent())
        d_out, d_lse = return_lse ? (array_of(tangent[1]), array_of(tangent[2])) : (tangent, nothing)
        return (NoTangent(), gradients(d_out, d_lse)...)
    end
    return return_lse ? (out, lse) : out, attention_pullback
end

end
