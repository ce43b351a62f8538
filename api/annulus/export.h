/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What every other header of annulus includes first: how a function is exported, C linkage, the width of enums.
 */
#ifndef ANNULUS_EXPORT_H
#define ANNULUS_EXPORT_H

#if defined(_WIN32)
#error "annulus supports platforms with ELF shared objects only"
#endif

#if defined(__GNUC__)
#define ANNULUS_API __attribute__((visibility("default")))
#else
#define ANNULUS_API
#endif

/*
 * ANNULUS_API of a function whose status the caller must look at: compilers warn where the result of a call is not
 * used. Where the language has [[nodiscard]], a cast to void says that it is left out on purpose.
 */
#if defined(__cplusplus) && __cplusplus >= 201703L
#define ANNULUS_API_STATUS [[nodiscard]] ANNULUS_API
#elif defined(__STDC_VERSION__) && __STDC_VERSION__ >= 202311L
#define ANNULUS_API_STATUS [[nodiscard]] ANNULUS_API
#elif defined(__GNUC__)
#define ANNULUS_API_STATUS ANNULUS_API __attribute__((warn_unused_result))
#else
#define ANNULUS_API_STATUS ANNULUS_API
#endif

#include <stdint.h>

/*
 * Behind the name of an enum: it has the width and the values of int32_t. C++11 and C23 can say so; in older C it is
 * what compilers do by themselves unless told otherwise, and where they are (-fshort-enums) the array below has no
 * legal size.
 */
#ifdef __cplusplus
#if __cplusplus >= 201103L
#define ANNULUS_INT32 : int32_t
#endif
#elif defined(__STDC_VERSION__) && __STDC_VERSION__ >= 202311L
#define ANNULUS_INT32 : int32_t
#endif
#ifndef ANNULUS_INT32
#define ANNULUS_INT32
#endif
enum annulus_small_enum ANNULUS_INT32 { ANNULUS_SMALL_ENUMERATOR = 1 };
typedef char annulus_enums_have_32_bits[sizeof(enum annulus_small_enum) == sizeof(int32_t) ? 1 : -1];

#ifdef __cplusplus
#define ANNULUS_BEGIN_DECLS extern "C" {
#define ANNULUS_END_DECLS }
#else
#define ANNULUS_BEGIN_DECLS
#define ANNULUS_END_DECLS
#endif

#endif
