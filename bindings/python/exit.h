/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Python may exit while a thread that nobody waits for is in a call: after Ctrl-C, or a daemon thread. The last step of
 * exit(), the libraries' destructors, would then destroy what the call works with. So the process ends without them.
 */
#ifndef ANNULUS_PYTHON_EXIT_H
#define ANNULUS_PYTHON_EXIT_H

/* Makes exit() end the process at once if a call is running. Called once, when the module and its libraries are loaded.
 */
void annulus_watch_exit(void);

/* Count the calls that compute. A caller that leaves a call to its thread counts it a second time, without an end. Any
   thread. */
void annulus_call_begins(void);
void annulus_call_ends(void);

#endif
