/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Every other header of annulus includes this header first. It says how a function is exported, and defines C linkage
 * and the width of enums.
 */
#ifndef ANNULUS_EXPORT_H
#define ANNULUS_EXPORT_H

#if defined(_WIN32)
#error "annulus supports platforms with ELF shared objects only"
#endif

/*
 * ANNULUS_API stands before every function of the library. ANNULUS_API_STATUS stands before a function whose status the
 * caller must look at: compilers warn if the caller does not use the result of a call. In a language with
 * [[nodiscard]], a cast to void says that the caller ignores the result on purpose.
 *
 * A parser of declarations that knows no attributes, such as cffi's, defines ANNULUS_API as nothing.
 */
#ifdef ANNULUS_API
#define ANNULUS_API_STATUS ANNULUS_API
#else
#if defined(__GNUC__)
#define ANNULUS_API __attribute__((visibility("default")))
#else
#define ANNULUS_API
#endif
#if defined(__cplusplus) && __cplusplus >= 201703L
#define ANNULUS_API_STATUS [[nodiscard]] ANNULUS_API
#elif defined(__STDC_VERSION__) && __STDC_VERSION__ >= 202311L
#define ANNULUS_API_STATUS [[nodiscard]] ANNULUS_API
#elif defined(__GNUC__)
#define ANNULUS_API_STATUS ANNULUS_API __attribute__((warn_unused_result))
#else
#define ANNULUS_API_STATUS ANNULUS_API
#endif
#define ANNULUS_CHECK_ENUMS
#endif

#include <stdint.h>

/*
 * ANNULUS_ENUM_INT32 stands behind the name of an enum. The enum has the width and the values of int32_t. C++11 and C23
 * can say this. Older C cannot, but its compilers choose this width by themselves, unless an option such as
 * -fshort-enums tells them otherwise. Then the array below has no legal size.
 */
#if defined(__cplusplus) && __cplusplus >= 201103L
#define ANNULUS_ENUM_INT32 : int32_t
#elif defined(__STDC_VERSION__) && __STDC_VERSION__ >= 202311L
#define ANNULUS_ENUM_INT32 : int32_t
#else
#define ANNULUS_ENUM_INT32
#endif
#ifdef ANNULUS_CHECK_ENUMS
enum annulus_small_enum ANNULUS_ENUM_INT32 { ANNULUS_SMALL_ENUMERATOR = 1 };
typedef char annulus_enums_have_32_bits[sizeof(enum annulus_small_enum) == sizeof(int32_t) ? 1 : -1];
#undef ANNULUS_CHECK_ENUMS
#endif

#ifdef __cplusplus
#define ANNULUS_BEGIN_DECLS extern "C" {
#define ANNULUS_END_DECLS }
#else
#define ANNULUS_BEGIN_DECLS
#define ANNULUS_END_DECLS
#endif

#endif
