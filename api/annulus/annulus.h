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
 * check() is the program's: it prints annulus_last_error() and ends unless the status is ANNULUS_OK, for instance.
 *
 * Conventions: opaque handles, made by `_create` and `_copy` and given back by `_destroy`, which takes NULL. A handle
 * that a function makes is its first parameter; whatever else a function writes is its last. Every function that can
 * fail returns an annulus_status (status.h). Structs that begin with `size` may grow in
 * later versions: the library reads as much as the caller's version had, and refuses non-zero bytes it does not know.
 * annulus changes nothing of the process: no signals, locale or floating-point modes. Threads that it starts block all
 * signals but those of a fault of their own, such as SIGSEGV, so that the program's threads get them.
 *
 * No function is a cancellation point: pthread_cancel() of a thread that is in one takes effect after it has returned
 * (with the cancelability type deferred, the default; asynchronous is not allowed, as in nearly all of C).
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
