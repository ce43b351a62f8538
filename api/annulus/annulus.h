/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libannulus, dilated attention over sequences of any length. This header includes the whole C API.
 *
 *   annulus_config *config;  // what to compute
 *   check(annulus_config_create(&config));
 *   const annulus_branch near = ANNULUS_BRANCH_INIT(2048, 1);  // segments of 2048, every position
 *   const annulus_branch far = ANNULUS_BRANCH_INIT(8192, 4);   // segments of 8192, every 4th position
 *   check(annulus_config_add_branch(config, &near, NULL));
 *   check(annulus_config_add_branch(config, &far, NULL));
 *   check(annulus_config_set_causal(config, 1));
 *
 *   annulus_context *context;  // where to compute it
 *   check(annulus_context_create(&context, ANNULUS_DEVICE_CPU, 0));
 *   check(annulus_context_set_config(context, config));
 *
 *   check(annulus_forward(context, &q, &k, &v, &out, &lse, NULL));
 *   check(annulus_backward(context, &q, &k, &v, &out, &lse, &d_out, NULL, &d_q, &d_k, &d_v, NULL));
 *
 *   annulus_context_destroy(context);
 *   annulus_config_destroy(config);
 *
 * check() is a function of the program. For instance, it prints annulus_last_error() and ends the program unless the
 * status is ANNULUS_OK.
 *
 * Handles are opaque. Functions with `_create` or `_copy` in their names make a handle. Functions with `_destroy`
 * destroy the handle and accept NULL. A handle that a function makes is the function's first parameter. Whatever else a
 * function writes is its last parameter. Every function that can fail returns an annulus_status (status.h).
 *
 * Structs that begin with `size` may grow in later versions. The library reads as much of a struct as the caller's
 * version had. It refuses non-zero bytes that it does not know.
 *
 * annulus changes nothing of the process: no signals, no locale, no floating-point modes. Threads that annulus starts
 * block all signals except the signals of their own faults, such as SIGSEGV. So the program's threads get the other
 * signals.
 *
 * No function is a cancellation point. If pthread_cancel() is called for a thread that is in a function of annulus, it
 * takes effect after the function has returned. The thread's cancelability type must be deferred, which is the default.
 * Asynchronous cancellation is not allowed, as in nearly all of C.
 */
#ifndef ANNULUS_ANNULUS_H
#define ANNULUS_ANNULUS_H

#include <annulus/attention.h>
#include <annulus/comm.h>
#include <annulus/config.h>
#include <annulus/context.h>
#include <annulus/hilbert.h>
#include <annulus/status.h>
#include <annulus/tensor.h>
#include <annulus/version.h>

#endif
