# SPDX-License-Identifier: Apache-2.0
"""
    Annulus.LibAnnulus

The C API, with a Julia function for each of its functions; the rest of the package calls it. Statuses and enums are plain
integers with constants, so values of a newer library are possible.
"""
module LibAnnulus

using Libdl

const SONAME = "libannulus.so.1"
const library_handle = Ref{Ptr{Cvoid}}(C_NULL)

"""
Returns the handle of the library, which is loaded at the first call: the file that the environment variable ANNULUS_LIBRARY
names, or else the library that the system's loader finds.
"""
function library()
    if library_handle[] == C_NULL
        name = get(ENV, "ANNULUS_LIBRARY", SONAME)
        handle = dlopen(name; throw_error = false)
        handle === nothing && error(
            "libannulus cannot be loaded from $name. Install it, or set the environment variable ANNULUS_LIBRARY to " *
            "its file.",
        )
        library_handle[] = handle
    end
    return library_handle[]
end

"""
    @library_call name(argument::Type, ...)::Result

Calls a function of the library, and keeps alive what the arguments point to. A garbage collection in another thread does not
wait for the call, since the call may take long, or wait for that thread itself (ranks of one process).
"""
macro library_call(signature)
    call, result = signature.args
    name, arguments = call.args[1], call.args[2:end]
    values = [esc(argument.args[1]) for argument in arguments]
    types = [esc(argument.args[2]) for argument in arguments]
    rooted = [gensym(:rooted) for _ in arguments]
    plain = [gensym(:plain) for _ in arguments]
    root_all = [:($r = Base.cconvert($t, $v)) for (r, t, v) in zip(rooted, types, values)]
    convert_all = [:($p = Base.unsafe_convert($t, $r)) for (p, t, r) in zip(plain, types, rooted)]
    quote
        address = dlsym(library(), $(QuoteNode(name)))
        $(root_all...)
        GC.@preserve $(rooted...) begin
            $(convert_all...)
            # Nothing may be allocated between enter and leave.
            state = ccall(:jl_gc_safe_enter, Int8, ())
            result = ccall(address, $(esc(result)), ($(types...),), $(plain...))
            ccall(:jl_gc_safe_leave, Cvoid, (Int8,), state)
        end
        result
    end
end

include("generated.jl")

end
