# SPDX-License-Identifier: Apache-2.0
module AnnulusBFloat16sExt

using Annulus, BFloat16s

Annulus.element_code(::Type{BFloat16}) = Annulus.LibAnnulus.ANNULUS_BFLOAT16

end
