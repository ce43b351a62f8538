/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The C API for SWIG, from which all bindings are made. `swig -python` writes the Python module. `swig -xml` writes the
 * parse tree that emit.py turns into the declarations for Rust and Julia.
 */
%module annulus

%{
#include <annulus/annulus.h>
%}

%include <stdint.i>

/* The macros of export.h are for C compilers. */
#define ANNULUS_API
#define ANNULUS_API_STATUS
#define ANNULUS_BEGIN_DECLS
#define ANNULUS_END_DECLS
#define ANNULUS_ENUM_INT32

#ifdef SWIGPYTHON
%include "python/typemaps.i"
#endif

/* SWIG does not follow #include. So each header is here once, after the headers that it includes. */
%include <annulus/version.h>
%include <annulus/status.h>
%include <annulus/tensor.h>
%include <annulus/hilbert.h>
%include <annulus/config.h>
%include <annulus/context.h>
%include <annulus/attention.h>
%include <annulus/comm.h>
