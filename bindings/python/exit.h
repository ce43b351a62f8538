/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Python may exit while a thread that nobody waits for is in a call: after Ctrl-C, or a daemon thread. What exit() runs
 * last, destructors of libraries, would then pull what it works with away from under the call. So the process ends
 * without them.
 */
#ifndef ANNULUS_PYTHON_EXIT_H
#define ANNULUS_PYTHON_EXIT_H

/* Makes exit() look whether a call is under way. Once, when the module is loaded, so after the libraries it needs. */
void annulus_watch_exit(void);

/* Around every call that computes, and once more when a caller leaves one to its thread. Any thread. */
void annulus_call_begins(void);
void annulus_call_ends(void);

#endif
