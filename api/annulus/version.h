/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The version of the headers (macros), the version of the loaded library (functions), and what the loaded library
 * knows.
 */
#ifndef ANNULUS_VERSION_H
#define ANNULUS_VERSION_H

#include <annulus/export.h>
#include <stdint.h>

ANNULUS_BEGIN_DECLS

/* The first number of the headers' version. ABI.md says when each of the three numbers grows. */
#define ANNULUS_VERSION_MAJOR 1
/* The second number of the headers' version. */
#define ANNULUS_VERSION_MINOR 0
/* The third number of the headers' version. */
#define ANNULUS_VERSION_PATCH 0

/*
 * The headers' version as one number: major * 1,000,000 + minor * 1,000 + patch. These numbers compare as versions do.
 */
#define ANNULUS_VERSION (ANNULUS_VERSION_MAJOR * 1000000 + ANNULUS_VERSION_MINOR * 1000 + ANNULUS_VERSION_PATCH)

/* Returns the loaded library's version as a number like ANNULUS_VERSION. Any thread. Since 1.0. */
ANNULUS_API int annulus_version(void);

/* Returns the loaded library's version as text, such as "1.0.0". Static. Any thread. Since 1.0. */
ANNULUS_API const char *annulus_version_string(void);

/*
 * Returns one line for bug reports. It names the version, the compiler, and the vector instructions that the CPU engine
 * uses on this machine. It also names the versions of CUDA, of CUDA's driver and of MPI. The function loads annulus's
 * parts for CUDA and MPI to find these versions. Static. Any thread. Since 1.0.
 */
ANNULUS_API const char *annulus_build_info(void);

/* The enumerations of the headers, as arguments of annulus_knows(). */
typedef enum annulus_feature ANNULUS_ENUM_INT32 {
    ANNULUS_FEATURE_FEATURE = 1,       /* annulus_feature itself */
    ANNULUS_FEATURE_STATUS = 2,        /* annulus_status */
    ANNULUS_FEATURE_DTYPE = 3,         /* annulus_dtype, without ANNULUS_DTYPE_NONE */
    ANNULUS_FEATURE_DEVICE = 4,        /* annulus_device */
    ANNULUS_FEATURE_ENGINE = 5,        /* annulus_engine */
    ANNULUS_FEATURE_PASS = 6,          /* annulus_pass */
    ANNULUS_FEATURE_PHASE_RULE = 7,    /* annulus_phase_rule */
    ANNULUS_FEATURE_QUERY_RULE = 8,    /* annulus_query_rule */
    ANNULUS_FEATURE_ORDER = 9,         /* annulus_order */
    ANNULUS_FEATURE_PADDING_RULE = 10, /* annulus_padding_rule */
    ANNULUS_FEATURE_KEY_RULE = 11,     /* annulus_key_rule */
    ANNULUS_FEATURE_EXCHANGE = 12,     /* annulus_exchange */
    ANNULUS_FEATURE_CALL_FLAG = 13,    /* annulus_call_flag, one bit of it */
    ANNULUS_FEATURE_COMM_FLAG = 14,    /* annulus_comm_flag, one bit of it */
    ANNULUS_FEATURE_BRANCH_KIND = 15   /* annulus_branch_kind */
} annulus_feature;

/*
 * Returns 1 if the loaded library knows `value` of an enumeration, else 0. If the library does not know the
 * enumeration, every value gives 0. So a program that was compiled with newer headers finds out what it may ask an
 * older library for.
 *
 * A known value does not mean that this build or machine supports the value. To find that out, call
 * annulus_device_count() and annulus_check_engine(). Any thread. Since 1.0.
 */
ANNULUS_API int annulus_knows(annulus_feature feature, int64_t value);

ANNULUS_END_DECLS

#endif
