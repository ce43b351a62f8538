/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What every other header of annulus includes first: how a function is exported, and C linkage.
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

#ifdef __cplusplus
#define ANNULUS_BEGIN_DECLS extern "C" {
#define ANNULUS_END_DECLS }
#else
#define ANNULUS_BEGIN_DECLS
#define ANNULUS_END_DECLS
#endif

#endif
