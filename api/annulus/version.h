/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Version of the headers (macros) and of the library that was loaded (functions).
 */
#ifndef ANNULUS_VERSION_H
#define ANNULUS_VERSION_H

#include <annulus/export.h>

ANNULUS_BEGIN_DECLS

/* The first number of the headers' version; ABI.md says when each grows. */
#define ANNULUS_VERSION_MAJOR 1
/* The second number. */
#define ANNULUS_VERSION_MINOR 0
/* The third number. */
#define ANNULUS_VERSION_PATCH 0

/* major * 1,000,000 + minor * 1,000 + patch: numbers that compare as versions do. */
#define ANNULUS_VERSION (ANNULUS_VERSION_MAJOR * 1000000 + ANNULUS_VERSION_MINOR * 1000 + ANNULUS_VERSION_PATCH)

/* The loaded library's version, as a number like ANNULUS_VERSION. Any thread. Since 0.1.0. */
ANNULUS_API int annulus_version(void);

/* The loaded library's version as text, such as "1.0.0". Static. Any thread. Since 0.1.0. */
ANNULUS_API const char *annulus_version_string(void);

/*
 * One line for bug reports: version, compiler, the vector instructions the CPU engine uses on this machine, and the
 * versions of CUDA, of its driver and of MPI, whose part of annulus is loaded for it. Static. Any thread. Since 0.1.0.
 */
ANNULUS_API const char *annulus_build_info(void);

ANNULUS_END_DECLS

#endif
