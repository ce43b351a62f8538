/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Version of the headers (macros) and of the library that was loaded (functions), and what that library knows.
 */
#ifndef ANNULUS_VERSION_H
#define ANNULUS_VERSION_H

#include <annulus/export.h>
#include <stdint.h>

ANNULUS_BEGIN_DECLS

/* The first number of the headers' version; ABI.md says when each grows. */
#define ANNULUS_VERSION_MAJOR 1
/* The second number. */
#define ANNULUS_VERSION_MINOR 0
/* The third number. */
#define ANNULUS_VERSION_PATCH 0

/* major * 1,000,000 + minor * 1,000 + patch: numbers that compare as versions do. */
#define ANNULUS_VERSION (ANNULUS_VERSION_MAJOR * 1000000 + ANNULUS_VERSION_MINOR * 1000 + ANNULUS_VERSION_PATCH)

/* The loaded library's version, as a number like ANNULUS_VERSION. Any thread. Since 1.0. */
ANNULUS_API int annulus_version(void);

/* The loaded library's version as text, such as "1.0.0". Static. Any thread. Since 1.0. */
ANNULUS_API const char *annulus_version_string(void);

/*
 * One line for bug reports: version, compiler, the vector instructions the CPU engine uses on this machine, and the
 * versions of CUDA, of its driver and of MPI, whose part of annulus is loaded for it. Static. Any thread. Since 1.0.
 */
ANNULUS_API const char *annulus_build_info(void);

/* The enumerations of the headers, for annulus_knows(). */
typedef enum annulus_feature ANNULUS_ENUM_INT32 {
    ANNULUS_FEATURE_FEATURE = 1,       /* annulus_feature itself */
    ANNULUS_FEATURE_STATUS = 2,        /* annulus_status */
    ANNULUS_FEATURE_DTYPE = 3,         /* annulus_dtype, ANNULUS_DTYPE_NONE excepted */
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
 * Whether the loaded library knows `value` of an enumeration: 1 or 0, and 0 for every value of an enumeration that it
 * does not know. So a program that was compiled with newer headers finds out what it may ask an older library for. That
 * a value is known does not say that this build or machine can do it: annulus_device_count() and annulus_check_engine()
 * do. Any thread. Since 1.0.
 */
ANNULUS_API int annulus_knows(annulus_feature feature, int64_t value);

ANNULUS_END_DECLS

#endif
