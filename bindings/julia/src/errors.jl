# SPDX-License-Identifier: Apache-2.0

"""
    AnnulusError

What a failed call throws. `status` is the C API's number (`Annulus.LibAnnulus.ANNULUS_ERROR_ARGUMENT` and so on; a newer
library may have more), `message` one line that names the argument, the value it had and what it may be.
`Annulus.status_name(error)` is `:argument`, `:unsupported`, `:memory`, `:internal`, `:cuda`, `:cublas`, `:comm`, `:nccl`,
`:mpi`, or `:unknown`. Indices and shapes in messages are C's: counted from 0, dimensions in the reverse order.
"""
struct AnnulusError <: Exception
    status::Cint
    message::String
end

status_name(error::AnnulusError) = Symbol(unsafe_string(LibAnnulus.annulus_status_name(error.status)))

Base.showerror(io::IO, error::AnnulusError) = print(io, "AnnulusError (", status_name(error), "): ", error.message)

argument_error(message) = AnnulusError(LibAnnulus.ANNULUS_ERROR_ARGUMENT, message)

"Throws what a C function that has just been called on this thread says."
function check(status)
    status == LibAnnulus.ANNULUS_OK && return nothing
    throw(AnnulusError(status, unsafe_string(LibAnnulus.annulus_last_error())))
end

"The constant that a keyword's symbol stands for."
function pick(name, value, choices)
    haskey(choices, value) && return choices[value]
    throw(argument_error("$name is $(repr(value)); it must be one of $(join(map(repr, collect(keys(choices))), ", "))"))
end
