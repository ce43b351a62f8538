/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Several ranks share one sequence. Each holds a contiguous shard of it: its own rows of Q, K, V, dO and of the
 * results. What they compute together is what one rank would compute of the whole sequence, up to rounding.
 *
 * A communicator is one rank's end of the connection. A context that was given one makes annulus_forward(),
 * annulus_backward() and annulus_attention_mass() collective: every rank calls, in the same order, with its own shard.
 * How many rows that is may differ from rank to rank and from call to call, and may be 0: then the shape is 0 there and
 * data may be NULL.
 *
 * Before a call computes, the ranks tell one another how many rows they have and compare config, dtype, heads, head
 * dimension and batch; where they differ every rank gets ANNULUS_ERROR_ARGUMENT with a message that names the
 * difference, and where one rank cannot do its part, as for bad arguments of its own or for want of memory, the others
 * get ANNULUS_ERROR_DECLINED with its message. Nothing is written then, and the communicator stays usable. So a call
 * waits for the other ranks to make theirs; on CUDA it does not wait for the tensors, but over NCCL between hosts for
 * what the call before it exchanges. Lengths that differ from those of the context's call before are told in one more
 * message. While a stream is being captured into a CUDA graph, which only NCCL's communicators allow, nothing is told
 * or compared: make the same call once before, or set the lengths by annulus_context_set_shards(), or the call is
 * ANNULUS_ERROR_UNSUPPORTED. A graph keeps using the communicator with the lengths that it was captured with: destroy
 * it before the communicator. Its replays are collective, are not compared, and are not given up after a timeout.
 *
 * A rank that dies, never calls or loses its connection makes the others' calls fail with ANNULUS_ERROR_COMM (or
 * ANNULUS_ERROR_COMM_LIBRARY where it is the library below that failed) within the timeout, or a tenth of it later
 * where messages have to be given up. From then on the communicator is broken: further calls fail at once with the
 * first status and message, and it never becomes whole again. annulus_comm_status() tells, also where it broke after a
 * call had returned, as over NCCL: what such a call wrote is undefined.
 *
 * So ranks go on after a failure, each by itself until the third step:
 *
 *   1. A call fails, or annulus_comm_status() tells that the communicator is broken. Where it is whole, as after
 *      ANNULUS_ERROR_ARGUMENT and ANNULUS_ERROR_DECLINED, mend the cause and call again, on all ranks. Else go on here.
 *   2. annulus_comm_abort(), so that no rank has to wait out its timeout for this one. Destroy graphs that use the
 *      communicator; take it from its contexts (annulus_context_set_comm() with NULL) or destroy these; destroy it, all
 *      of which waits for no other rank. A borrowed ncclComm_t that annulus was not allowed to abort is then for its
 *      owner to abort by ncclCommAbort(): the stream may stand still until then.
 *   3. The ranks that are left meet by means of the program's own (a new MPI communicator, a process group, a file),
 *      make a new communicator with a new id, give it to their contexts and repeat the work from what they know to be
 *      whole. Contexts, configs, streams and workspaces stay good. MPI itself may not (annulus_comm_create_from_mpi()).
 *
 * Threads: one at a time may make calls with an end. Several contexts may share it, such as those of a model's layers,
 * and call one after the other; while one of them is in a call with it, a call of another and
 * annulus_comm_set_timeout() are ANNULUS_ERROR_ARGUMENT, and the other ranks hear nothing of them. Any thread may call
 * annulus_comm_abort(), annulus_comm_status(), annulus_comm_size() and annulus_comm_rank() beside a call, or give the
 * end to a context.
 *
 * A context that was given an end shares its memory. So an end may be destroyed before its contexts: their calls are
 * ANNULUS_ERROR_ARGUMENT from then on, until they are given another or none. An end that is destroyed while a context
 * is in a call with it is aborted, so that the call returns, and goes with the end of the call. What calls have given
 * to a stream needs no end. The handle itself is not to be used once annulus_comm_destroy() has been called with it.
 *
 * A communicator belongs to the process that made it. In a forked child it can only be destroyed, which gives nothing
 * back, or taken from a context by annulus_context_set_comm(); any other use is ANNULUS_ERROR_ARGUMENT.
 *
 *     local  ranks are threads of one process, each with a context on a CPU or on a GPU of its own: the fastest for
 *            GPUs of one process, whose rows are copied from GPU to GPU, or by way of the host where two GPUs have no
 *            access to one another
 *     MPI    ranks are processes with contexts on CPUs
 *     NCCL   ranks are processes or threads with contexts on a GPU each
 */
#ifndef ANNULUS_COMM_H
#define ANNULUS_COMM_H

#include <annulus/attention.h>
#include <annulus/context.h>
#include <annulus/export.h>
#include <annulus/status.h>
#include <stddef.h>
#include <stdint.h>

ANNULUS_BEGIN_DECLS

/* One rank's end of a communicator. */
typedef struct annulus_comm annulus_comm;

/*
 * Bits of annulus_comm_options.flags: 0 to 30 alone, as of annulus_call_flag.
 *
 * Over NCCL, processes of one host agree through shared memory and copy rows from one another's GPU memory. If a rank
 * cannot reach another rank's memory, as between hosts and between containers, all ranks use NCCL alone. With
 * ANNULUS_COMM_ONLY_NCCL all ranks use NCCL alone on one host, too. One rank that has the flag is enough: the ranks
 * tell one another in their first call.
 *
 * With NCCL alone a call waits for what the call before it exchanges. A rank that is gone is missed when the timeout is
 * over, unless NCCL reports it earlier.
 */
typedef enum annulus_comm_flag ANNULUS_ENUM_INT32 {
    ANNULUS_COMM_MAY_ABORT = 1, /* annulus_comm_create_from_nccl() alone: annulus may abort the caller's ncclComm_t */
    ANNULUS_COMM_ONLY_NCCL = 2  /* communicators over NCCL: agreement, lengths and rows travel by NCCL alone */
} annulus_comm_flag;

/*
 * How a communicator is made. Set `size` to sizeof(annulus_comm_options), best by ANNULUS_COMM_OPTIONS_INIT. Where a
 * function takes a pointer to one, NULL stands for the defaults; in all of them a size that is not known, non-zero
 * bytes behind what this version knows, a creation_timeout that is negative or not finite, and flags that the function
 * does not have are ANNULUS_ERROR_ARGUMENT.
 */
typedef struct annulus_comm_options {
    size_t size;
    double creation_timeout; /* seconds to wait for the other ranks while the communicator is made; 0: 300 */
    uint64_t flags;          /* the sum of some annulus_comm_flag */
} annulus_comm_options;

#define ANNULUS_COMM_OPTIONS_INIT                                                                                      \
    { sizeof(annulus_comm_options), 0, 0 }

/*
 * Makes the ends of a communicator between `ranks` threads of this process, in comms[0 … ranks - 1]; comms[i] is rank
 * i's. Each is destroyed by its owner. Nothing waits here: options' creation_timeout has no effect.
 * ANNULUS_ERROR_ARGUMENT: comms is NULL, ranks is not from 1 to 4096, or options are not as above.
 * ANNULUS_ERROR_MEMORY. Since 1.0.
 */
ANNULUS_API_STATUS annulus_status annulus_comm_create_local(annulus_comm **comms, int32_t ranks,
                                                            const annulus_comm_options *options);

/*
 * Makes a communicator over the processes of an MPI communicator, in *comm. Collective over it. mpi_comm points to an
 * MPI_Comm of the MPI library that annulus's part for MPI is linked with; annulus duplicates it, and MPI must be
 * initialised until the annulus communicator is destroyed. Only the calling thread calls MPI: MPI_THREAD_SINGLE is
 * enough where it is the main one. MPI's duplication cannot be given up: it waits for the other processes as long as
 * MPI does, and options' creation_timeout has no effect.
 *
 * That part is the file libannulus-mpi.so.1, found and loaded as the one for CUDA is (annulus_device_count()), by the
 * first call of this function or of annulus_build_info(). Where the process has another MPI library as well, which the
 * part's calls would reach or in which MPI is initialised, the MPI_Comm may be of that one, and is refused.
 *
 * What MPI does by itself when a process dies is not annulus's to change. Open MPI's mpirun ends all processes then,
 * unless it is called with --enable-recovery; only with that do the others' calls return. They return late where Open
 * MPI waits for mpirun to report a connection that broke, and the program should not go on using MPI: send and receive,
 * or MPI_Finalize(), may wait for the dead process, and over TCP writing to it raises SIGPIPE, which annulus holds back
 * during its own calls alone. Ending with _exit(), or MPI_Abort() to end all, is safe. Messages that MPI does not let
 * annulus give up may use a failed call's memory as long as the program goes on calling MPI: what annulus or an
 * allocator gave is not released, and a workspace of the caller must stay.
 *
 * ANNULUS_ERROR_ARGUMENT: comm or mpi_comm is NULL, MPI is not initialised, or options are not as above.
 * ANNULUS_ERROR_UNSUPPORTED: annulus's part for MPI cannot be loaded, or the process has another MPI library, as above.
 * ANNULUS_ERROR_COMM_LIBRARY: an MPI call failed. Since 1.0.
 */
ANNULUS_API_STATUS annulus_status annulus_comm_create_from_mpi(annulus_comm **comm, const void *mpi_comm,
                                                               const annulus_comm_options *options);

/* What one rank makes and every rank of an NCCL communicator gets: plain bytes, to be carried by whatever there is. */
typedef struct annulus_nccl_id {
    char bytes[128];
} annulus_nccl_id;

/*
 * Generates an id in *id, on one rank, for one communicator. ANNULUS_ERROR_ARGUMENT: id is NULL.
 * ANNULUS_ERROR_UNSUPPORTED: annulus's part for CUDA cannot be loaded (see annulus_device_count()) or was built without
 * NCCL, or libnccl.so.2 cannot be loaded or is older than 2.14. ANNULUS_ERROR_COMM_LIBRARY: an NCCL call failed.
 *
 * annulus is not linked with NCCL. The first function that needs it opens libnccl.so.2 by dlopen(): the library of that
 * soname which is in the process already, as it is once PyTorch or CuPy has loaded theirs, else what the dynamic loader
 * finds, as in LD_LIBRARY_PATH or the system's directories. It stays for the life of the process. Since 1.0.
 */
ANNULUS_API_STATUS annulus_status annulus_nccl_id_generate(annulus_nccl_id *id);

/*
 * Makes rank `rank` of an NCCL communicator of `ranks` ranks on CUDA device `device`, in *comm. Collective over the
 * ranks, which pass the same id; waits for them for at most options' creation_timeout, then ANNULUS_ERROR_COMM.
 * ANNULUS_ERROR_ARGUMENT: comm or id is NULL, rank is not below ranks, there is no such device, or options are not as
 * above. ANNULUS_ERROR_DEVICE: the device could not be used. Other errors as annulus_nccl_id_generate(). Since 1.0.
 */
ANNULUS_API_STATUS annulus_status annulus_comm_create_nccl(annulus_comm **comm, const annulus_nccl_id *id,
                                                           int32_t ranks, int32_t rank, int32_t device,
                                                           const annulus_comm_options *options);

/*
 * Makes the ends of an NCCL communicator over `ranks` CUDA devices of this process, in comms[0 … ranks - 1]; comms[i]
 * is for a context on devices[i], used by a thread of its own. devices NULL: the devices 0 … ranks - 1. No device may
 * stand there twice. Errors as annulus_comm_create_nccl(). Since 1.0.
 */
ANNULUS_API_STATUS annulus_status annulus_comm_create_nccl_devices(annulus_comm **comms, int32_t ranks,
                                                                   const int32_t *devices,
                                                                   const annulus_comm_options *options);

/*
 * Makes a communicator, in *comm, that uses an existing ncclComm_t. nccl_comm points to it, as to an MPI_Comm above. It
 * is of the libnccl.so.2 that annulus opens (annulus_nccl_id_generate() says which): one of another copy of NCCL, or of
 * one that is linked statically into the program, must not be given. It stays the caller's and must outlive the annulus
 * communicator; nobody else may use it while an annulus call runs. The ranks have met already, so options'
 * creation_timeout has no effect.
 *
 * Without ANNULUS_COMM_MAY_ABORT annulus never aborts it. A failure then breaks the annulus communicator alone: its
 * calls fail at once, annulus does not call NCCL any more, and kernels of NCCL that are in a stream already may wait
 * there for another rank until the caller aborts the ncclComm_t. Destroy the annulus communicator before that, which
 * does not wait for those kernels, and leaves some kilobytes of memory that they may use allocated for good. With
 * ANNULUS_COMM_MAY_ABORT annulus aborts the ncclComm_t on failure, which stops those kernels; the caller must not use
 * it then, not even to destroy it, once annulus_comm_status() tells that the communicator is broken.
 *
 * ANNULUS_ERROR_ARGUMENT also where nccl_comm or what it points to is NULL. Other errors as annulus_comm_create_nccl().
 * Since 1.0.
 */
ANNULUS_API_STATUS annulus_status annulus_comm_create_from_nccl(annulus_comm **comm, const void *nccl_comm,
                                                                const annulus_comm_options *options);

/* The number of ranks, in *size. ANNULUS_ERROR_ARGUMENT: a pointer is NULL. Any thread. Since 1.0. */
ANNULUS_API_STATUS annulus_status annulus_comm_size(const annulus_comm *comm, int32_t *size);

/* The rank of this end, from 0, in *rank. ANNULUS_ERROR_ARGUMENT: a pointer is NULL. Any thread. Since 1.0. */
ANNULUS_API_STATUS annulus_status annulus_comm_rank(const annulus_comm *comm, int32_t *rank);

/*
 * Sets how many seconds a call waits for another rank before it fails: more than 0, 300 unless set. On CUDA what is
 * waited for after a call has returned counts too: NCCL's kernels that a dead rank holds up are stopped, unless they
 * are of a borrowed ncclComm_t that annulus may not abort. Ranks may have different timeouts. ANNULUS_ERROR_ARGUMENT:
 * comm is NULL or in a call of a context, or seconds is not a finite number above 0. Since 1.0.
 */
ANNULUS_API_STATUS annulus_status annulus_comm_set_timeout(annulus_comm *comm, double seconds);

/*
 * Writes the state of the communicator to *status: ANNULUS_OK where it is usable, as far as this rank knows; that
 * another rank is gone shows when a call misses it. Else the status with which it broke (ANNULUS_ERROR_COMM,
 * ANNULUS_ERROR_COMM_LIBRARY, or ANNULUS_ERROR_DEVICE where the device of this rank failed and left the others without
 * its part). Then this call succeeds as well, and what annulus_last_error() and its companions say of the failure with
 * which the communicator broke becomes the calling thread's. Over NCCL it may break after a call has returned; so ask
 * when the stream has come past the call, before its results are used. Never waits. Any thread.
 * ANNULUS_ERROR_ARGUMENT: a pointer is NULL, or comm is of the process that this one was forked from. Since 1.0.
 */
ANNULUS_API_STATUS annulus_status annulus_comm_status(const annulus_comm *comm, annulus_status *status);

/*
 * Breaks the communicator: calls of other threads of this process that wait in it return ANNULUS_ERROR_COMM, and other
 * processes' calls fail when they miss this rank. Any thread. ANNULUS_ERROR_ARGUMENT: comm is NULL. Since 1.0.
 */
ANNULUS_API annulus_status annulus_comm_abort(annulus_comm *comm);

/*
 * Destroys a rank's end; NULL is legal. Does not wait for other ranks, whose calls fail from then on; one of NCCL that
 * annulus made and that is whole gives its last work up to 2 seconds, and is then aborted. Calls of contexts that have
 * it are ANNULUS_ERROR_ARGUMENT from then on; one that is in it returns ANNULUS_ERROR_COMM, unless it had all that it
 * waits for. Any thread. Since 1.0.
 */
ANNULUS_API void annulus_comm_destroy(annulus_comm *comm);

/*
 * Makes the context's calls collective over `comm`, which stays the caller's; NULL makes the context compute alone
 * again (default). Forgets the shards. ANNULUS_ERROR_ARGUMENT: context is NULL, or comm is bound
 * to another device than the context's. ANNULUS_ERROR_UNSUPPORTED: comm does not work with devices of the context's
 * kind. Since 1.0.
 */
ANNULUS_API_STATUS annulus_status annulus_context_set_comm(annulus_context *context, annulus_comm *comm);

/*
 * How ranks share a sequence. Set `size` to sizeof(annulus_shards), best by ANNULUS_SHARDS_INIT. The sequence is cut
 * into `count` shards, one behind the other, of which shard i has lengths[i] >= 0 positions and belongs to rank
 * owners[i], or to rank i where owners is NULL, and count then the number of ranks. The arrays are read during the call
 * only.
 *
 * A rank with several shards has their rows one behind the other in its tensors, in the order of their positions. So
 * under causality every rank can be given as much to do as the others: with P ranks and 2P shards as equal as can be,
 * shard i belongs to rank min(i, 2P - 1 - i) (zigzag). Shards that share a segment, or of which one is within reach of
 * the other's window or has global positions, send one another messages of their own, of which a rank can have 2^19
 * (attention.h).
 */
typedef struct annulus_shards {
    size_t size;
    int32_t ranks; /* from 1 to 4096; in annulus_context_set_shards() the communicator's, or 0 for it */
    int32_t count; /* up to 65536; in annulus_estimate_rank() also 0, with both arrays NULL: one a rank, as equal
                      as can be, the first ones longer */
    const int64_t *lengths; /* [count] in host memory */
    const int32_t *owners;  /* [count] in host memory, or NULL */
} annulus_shards;

#define ANNULUS_SHARDS_INIT                                                                                            \
    { sizeof(annulus_shards), 0, 0, NULL, NULL }

/*
 * Says how the communicator's ranks share the sequence. Calls need it only where a rank holds several shards, and where
 * a stream is being captured, since else the ranks tell one another; it is also a check: a call is
 * ANNULUS_ERROR_ARGUMENT on every rank where the ranks' tensors have other rows than some rank has set, or where the
 * ranks' shards differ and some have several, or ANNULUS_ERROR_DECLINED on the others of a rank whose own tensors do
 * not have what it has set.
 *
 * annulus_workspace_size() and annulus_estimate_problem() ask nobody: in a context with a communicator they answer for
 * these shards, which must be as long together as the problem's sequence; where none are set, for those of the
 * context's last call if the problem's sequence is as long; else for shards as equal as can be, the first ones longer.
 *
 * NULL takes the shards back (default): each rank then has one, in the order of the ranks. ANNULUS_ERROR_ARGUMENT:
 * context is NULL or has no communicator, a size is not known or non-zero bytes follow what this version knows, ranks
 * is neither 0 nor the number of ranks, lengths is NULL, count is not the number of ranks or, with owners, not in
 * 1 ... 65536, a length is negative, all are 0, or an element of owners is no rank. Since 1.0.
 */
ANNULUS_API_STATUS annulus_status annulus_context_set_shards(annulus_context *context, const annulus_shards *shards);

/* What the last successful call of a context sent to and received from other ranks: rows of K and V, and of dK and dV.
 */
typedef struct annulus_traffic {
    size_t size;             /* sizeof(annulus_traffic) */
    uint64_t sent_bytes;     /* to all other ranks together */
    uint64_t received_bytes; /* from all other ranks together */
} annulus_traffic;

#define ANNULUS_TRAFFIC_INIT                                                                                           \
    { sizeof(annulus_traffic), 0, 0 }

/* Writes it to *traffic. ANNULUS_ERROR_ARGUMENT: a pointer is NULL or the size is not known. Since 1.0. */
ANNULUS_API_STATUS annulus_status annulus_context_last_traffic(const annulus_context *context,
                                                               annulus_traffic *traffic);

/*
 * Estimates, in *estimate, a pass of rank `rank` of shards->ranks in a problem under the context's config; the context
 * needs no communicator. The shards' lengths add up to the sequence length. pairs and flops are those of all branches.
 * Errors as annulus_estimate_problem(), which says how large a plan may be, and ANNULUS_ERROR_ARGUMENT where shards or
 * rank are not as above. Since 1.0.
 */
ANNULUS_API_STATUS annulus_status annulus_estimate_rank(annulus_context *context, const annulus_problem *problem,
                                                        annulus_pass pass, const annulus_shards *shards, int32_t rank,
                                                        annulus_estimate *estimate);

/* The most shards that annulus_shards may have, and that annulus_balance_shards() finds. */
#define ANNULUS_MAX_SHARDS 65536

/*
 * Finds shards of a problem under the context's config that give each of `ranks` ranks about the same work. Writes the
 * length of each shard to lengths[], its rank to owners[], as annulus_shards takes them, and the number of shards to
 * *count. The options of the problem tell the sequences. The context needs no communicator. Every rank that asks with
 * the same problem gets the same shards.
 *
 * The numbers of rows of two ranks differ by at most 1. Each rank has one shard, in the order of the ranks, unless
 * other shards leave the busiest rank less to do: a zigzag, or shards that keep sequences whole and cut few of them.
 * Work is the pairs of queries and keys that a rank computes, and the rows of K and V and the messages that it
 * receives, weighed by the rates of a GPU; more than 8 ranks are taken to be on several hosts. For very many ranks and
 * sequences the search stops after about a second with the best shards so far, on every rank the same. The choice may
 * change between versions.
 *
 * capacity: the elements that lengths and owners have room for. ANNULUS_MAX_SHARDS is always enough.
 *
 * Errors as annulus_estimate_problem() for a forward pass. ANNULUS_ERROR_ARGUMENT also where lengths, owners or count
 * is NULL, ranks is not from 1 to 4096, or capacity is less than 1 or than the number of shards, which the message
 * tells. Then nothing was written. Since 1.0.
 */
ANNULUS_API_STATUS annulus_status annulus_balance_shards(annulus_context *context, const annulus_problem *problem,
                                                         int32_t ranks, int32_t capacity, int64_t *lengths,
                                                         int32_t *owners, int32_t *count);

ANNULUS_END_DECLS

#endif
