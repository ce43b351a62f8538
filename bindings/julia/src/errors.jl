# SPDX-License-Identifier: Apache-2.0

"""
    AnnulusError

The error of a failed call.

* `status`: the C API's number, such as `Annulus.LibAnnulus.ANNULUS_ERROR_ARGUMENT`; a newer library may have more. Below 100
  nothing was written; from 100 on results may be partly written. `Annulus.status_name(error)` is `:argument`, `:unsupported`,
  `:memory`, `:workspace`, `:declined`, `:device`, `:comm`, `:comm_library`, `:internal`, or `:unknown`.
* `message`: one line that names the argument, its value and what it may be. It names dimensions as Julia does (`size(q, 1)` is
  D); the elements of `sequence_starts` and of other lists are counted from 0.
* `bytes`: the workspace that the call needs, if the name is `:workspace`; else 0.
* `library`, `code`: the library that failed, such as "cuda" or "nccl", and the number that its function returned; "" and 0 if no
  library failed.
"""
struct AnnulusError <: Exception
    status::Cint
    message::String
    bytes::UInt64
    library::String
    code::Int64
end

AnnulusError(status, message) = AnnulusError(status, message, 0, "", 0)

status_name(error::AnnulusError) = Symbol(unsafe_string(LibAnnulus.annulus_status_name(error.status)))

Base.showerror(io::IO, error::AnnulusError) = print(io, "AnnulusError (", status_name(error), "): ", error.message)

argument_error(message) = AnnulusError(LibAnnulus.ANNULUS_ERROR_ARGUMENT, message)

"""
Returns a message of the library with Julia's names of dimensions. The library has them in the reverse order, counted from 0:
`shape[3] of q` is `size(q, 1)`.
"""
function in_julia(message)
    found = match(r"\b(shape|stride)\[(\d)\] of (\w+)((?:\[\d+\])?)", message)
    found === nothing && return message
    what, place, name, index = found.captures
    ndim = match(r"^(lse|lses|d_lse|mass)$", name) === nothing ? 4 : 3
    words = string(what == "shape" ? "size" : "stride", "(", name, index, ", ", ndim - parse(Int, place), ")")
    before, after = message[1:prevind(message, found.offset)], message[found.offset+ncodeunits(found.match):end]
    return before * words * in_julia(after)
end

"Makes the error for the status of this thread's last call of a C function, or returns `nothing` for success."
function error_of(status)
    status == LibAnnulus.ANNULUS_OK && return nothing
    message = in_julia(unsafe_string(LibAnnulus.annulus_last_error()))
    library = unsafe_string(LibAnnulus.annulus_last_error_library())
    bytes, code = LibAnnulus.annulus_last_error_bytes(), LibAnnulus.annulus_last_error_code()
    return AnnulusError(status, message, bytes, library, code)
end

"Throws the error for the status of this thread's last call; does nothing for success."
function check(status)
    error = error_of(status)
    return error === nothing ? nothing : throw(error)
end

"Returns the constant for the symbol of a keyword. Refuses other symbols."
function pick(name, value, choices)
    haskey(choices, value) && return choices[value]
    throw(argument_error("$name is $(repr(value)); it must be one of $(join(map(repr, collect(keys(choices))), ", "))"))
end
