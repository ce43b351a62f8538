/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The functions of failing.c. Calls are counted in the whole process. MEMORY: malloc, calloc, realloc, memalign,
 * aligned_alloc, posix_memalign, and so operator new. MAPPINGS: mmap, except the C library's own calls. THREADS:
 * pthread_create. FAIL_MEMORY, FAIL_MAPPINGS or FAIL_THREADS in the environment call fail_calls() at the program's
 * start. The value is "first" (all calls after it fail) or "first count".
 */
#ifndef ANNULUS_TESTS_FAULTS_FAILING_H
#define ANNULUS_TESTS_FAULTS_FAILING_H

#ifdef __cplusplus
extern "C" {
#endif

enum call_kind { MEMORY, MAPPINGS, THREADS, CALL_KINDS };

/* Lets the next `first` calls of a kind succeed and the following `count` calls fail; 0 and 0: none fails. */
void fail_calls(enum call_kind kind, long first, long count);

/* Returns the number of calls of a kind that have failed since fail_calls(). */
long failed_calls(enum call_kind kind);

/* Returns the number of allocations that were not released. */
long live_pieces(void);

#ifdef __cplusplus
}
#endif

#endif
