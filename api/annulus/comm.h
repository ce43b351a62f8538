/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Several ranks share one sequence. Each rank holds a contiguous shard of it: its own rows of Q, K, V, dO and of the
 * results. Together they compute what one rank would compute over the whole sequence, up to rounding.
 *
 * A communicator connects the ranks, and each rank has one end of it. annulus_context_set_comm() gives an end to a
 * context. Then annulus_forward(), annulus_backward() and annulus_attention_mass() are collective: every rank calls
 * them in the same order, with its own shard. The number of rows may differ from rank to rank and from call to call. It
 * may be 0: then the shape is 0 there, and data may be NULL.
 *
 * Agreement. Before a call computes, the ranks exchange their numbers of rows, and compare config, dtype, heads, head
 * dimension and batch.
 *
 *   - If they differ, every rank gets ANNULUS_ERROR_ARGUMENT, and the message names the difference.
 *   - If one rank cannot do its part, the other ranks get ANNULUS_ERROR_DECLINED with the message of that rank. Its
 *     arguments may be bad, for example, or its memory too small.
 *
 * In both cases nothing is written, and the communicator stays usable.
 *
 * Because of this exchange a call waits until the other ranks call, too. On CUDA it does not wait for the tensors. With
 * NCCL alone (annulus_comm_flag), as between hosts, it also waits for what the call before it exchanges. If the lengths
 * differ from those of the context's last call, the ranks exchange one more message.
 *
 * CUDA graphs. Only communicators over NCCL allow capture. While a stream is being captured, the ranks exchange no
 * lengths and compare nothing. So make the same call once before, or set the lengths by annulus_context_set_shards().
 * Otherwise the call is ANNULUS_ERROR_UNSUPPORTED. A graph uses the communicator, with the lengths of the capture, as
 * long as the graph exists: destroy the graph before the communicator. Replays are collective. They are not compared,
 * and no timeout ends them.
 *
 * Failures. A rank may die, never call, or lose its connection. Then the calls of the other ranks fail with
 * ANNULUS_ERROR_COMM within the timeout. If messages have to be given up, it may take up to a tenth of the timeout
 * longer. The status is ANNULUS_ERROR_COMM_LIBRARY instead if the library below failed. From then on the communicator
 * is broken, for good: further calls fail at once with the first status and message. Over NCCL it may also break after
 * a call has returned, and what that call wrote is undefined. annulus_comm_status() tells whether it is broken.
 *
 * To go on after a failure, each rank does this. Only step 3 needs the other ranks:
 *
 *   1. A call fails, or annulus_comm_status() tells that the communicator is broken. If it is not broken, as after
 *      ANNULUS_ERROR_ARGUMENT and ANNULUS_ERROR_DECLINED, remove the cause and call again on all ranks. Else go on.
 *   2. Call annulus_comm_abort(), so that no rank waits for this one until the timeout. Destroy graphs that use the
 *      communicator. Take it from its contexts (annulus_context_set_comm() with NULL) or destroy them. Destroy the
 *      communicator. None of this waits for another rank. If annulus was not allowed to abort a borrowed ncclComm_t,
 *      its owner must call ncclCommAbort(): until then the stream may stand still.
 *   3. The remaining ranks meet by the program's own means: a new MPI communicator, a process group, a file. They make
 *      a new communicator with a new id, give it to their contexts, and repeat the work from a state that they know to
 *      be whole. Contexts, configs, streams and workspaces stay usable. MPI may not (annulus_comm_create_from_mpi()).
 *
 * Threads. One thread at a time may make calls with an end. Several contexts may share an end, for example those of a
 * model's layers, and call one after the other. While one of them is in a call that uses the end, such a call of
 * another context is ANNULUS_ERROR_ARGUMENT, and so is annulus_comm_set_timeout(). The other ranks hear nothing of
 * these calls. Any thread may call annulus_comm_abort(), annulus_comm_status(), annulus_comm_size() and
 * annulus_comm_rank() beside a call, or give the end to a context.
 *
 * Lifetime. A context shares the memory of the end that it was given, so an end may be destroyed before its contexts.
 * From then on their calls are ANNULUS_ERROR_ARGUMENT, until they get another end or none. If a call uses the end when
 * the end is destroyed, the end is aborted, so that the call returns. The end is freed when the call ends. Work that is
 * on a stream already needs no end. After annulus_comm_destroy() the handle must not be used.
 *
 * A communicator belongs to the process that made it. A forked child can destroy it, which gives nothing back, or take
 * it from a context by annulus_context_set_comm(). Any other use is ANNULUS_ERROR_ARGUMENT.
 *
 *     local  Ranks are threads of one process. Each has a context on a CPU or on a GPU of its own. A local communicator
 *            is the fastest kind for GPUs of one process: rows are copied from GPU to GPU. If two GPUs have no access
 *            to one another, rows go by way of the host.
 *     MPI    Ranks are processes with contexts on CPUs.
 *     NCCL   Ranks are processes or threads, each with a context on a GPU.
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
 * Bits of annulus_comm_options.flags. Only bits 0 to 30 are used, as in annulus_call_flag.
 *
 * Over NCCL, processes of one host agree through shared memory and copy rows from one another's GPU memory. If a rank
 * cannot reach another rank's memory, as between hosts and between containers, all ranks use NCCL alone. With
 * ANNULUS_COMM_ONLY_NCCL all ranks use NCCL alone on one host, too. One rank that has the flag is enough: the ranks
 * tell one another in their first call.
 *
 * With NCCL alone a call waits for what the call before it exchanges. If a rank is gone, the other ranks notice it when
 * the timeout is over, unless NCCL reports it earlier.
 */
typedef enum annulus_comm_flag ANNULUS_ENUM_INT32 {
    ANNULUS_COMM_MAY_ABORT = 1, /* annulus_comm_create_from_nccl() alone: annulus may abort the caller's ncclComm_t */
    ANNULUS_COMM_ONLY_NCCL = 2  /* communicators over NCCL: agreement, lengths and rows travel by NCCL alone */
} annulus_comm_flag;

/*
 * How a communicator is made. Set `size` to sizeof(annulus_comm_options), best by ANNULUS_COMM_OPTIONS_INIT. A function
 * that takes a pointer to options also takes NULL, for the defaults. It returns ANNULUS_ERROR_ARGUMENT if
 *
 *   - the size is not known, or non-zero bytes follow what this version knows,
 *   - creation_timeout is negative or not finite,
 *   - flags has a bit that the function does not know.
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
 * i's. Its owner destroys each end. The function does not wait, so creation_timeout has no effect.
 * ANNULUS_ERROR_ARGUMENT: comms is NULL, ranks is not from 1 to 4096, or options are not as above.
 * ANNULUS_ERROR_MEMORY. Since 1.0.
 */
ANNULUS_API_STATUS annulus_status annulus_comm_create_local(annulus_comm **comms, int32_t ranks,
                                                            const annulus_comm_options *options);

/*
 * Makes a communicator over the processes of an MPI communicator, in *comm. It is collective: all of these processes
 * call it. mpi_comm points to an MPI_Comm of the MPI library that annulus's part for MPI is linked with. annulus
 * duplicates the MPI_Comm.
 * MPI must stay initialised until the annulus communicator is destroyed. Only the calling thread calls MPI: if it is
 * the main thread, MPI_THREAD_SINGLE is enough. MPI's duplication cannot be given up, so it waits for the other
 * processes as long as MPI does, and creation_timeout has no effect.
 *
 * annulus's part for MPI is the file libannulus-mpi.so.1. It is found and loaded like the part for CUDA
 * (annulus_device_count()), by the first call of this function or of annulus_build_info(). The process may have another
 * MPI library, too. If the part's calls would reach that library, or if MPI is initialised in it, the MPI_Comm may
 * belong to it, and is refused.
 *
 * What MPI does when a process dies is not up to annulus:
 *
 *   - Open MPI's mpirun ends all processes, unless it is called with --enable-recovery. Only with that option the calls
 *     of the other processes return. They return late if Open MPI waits until mpirun reports a broken connection.
 *   - The program should then not go on with MPI. Sends and receives, and MPI_Finalize(), may wait for the dead
 *     process. Over TCP a write to it raises SIGPIPE, which annulus holds back only during its own calls. It is safe to
 *     end with _exit(), or with MPI_Abort(), which ends all processes.
 *   - MPI may not let annulus give up some messages. They may use the memory of a failed call as long as the program
 *     calls MPI. So memory that annulus or an allocator gave to this call is not released. A workspace of the caller
 *     must stay.
 *
 * ANNULUS_ERROR_ARGUMENT: comm or mpi_comm is NULL, MPI is not initialised, or options are not as above.
 * ANNULUS_ERROR_UNSUPPORTED: annulus's part for MPI cannot be loaded, or the process has another MPI library, as above.
 * ANNULUS_ERROR_COMM_LIBRARY: an MPI call failed. Since 1.0.
 */
ANNULUS_API_STATUS annulus_status annulus_comm_create_from_mpi(annulus_comm **comm, const void *mpi_comm,
                                                               const annulus_comm_options *options);

/*
 * Identifies an NCCL communicator. One rank makes it. It is plain bytes, and the program carries them to all ranks by
 * any means.
 */
typedef struct annulus_nccl_id {
    char bytes[128];
} annulus_nccl_id;

/*
 * Generates an id in *id, for one communicator. One rank calls it.
 *
 * annulus is not linked with NCCL. The first function that needs NCCL opens libnccl.so.2 by dlopen(). If the process
 * has a library of that soname already, as after PyTorch or CuPy has loaded theirs, annulus gets that one. Else it gets
 * what the dynamic loader finds, as in LD_LIBRARY_PATH or the system's directories. The library stays for the life of
 * the process.
 *
 * ANNULUS_ERROR_ARGUMENT: id is NULL.
 * ANNULUS_ERROR_UNSUPPORTED: annulus's part for CUDA cannot be loaded (annulus_device_count()) or was built without
 * NCCL, or libnccl.so.2 cannot be loaded or is older than 2.14.
 * ANNULUS_ERROR_COMM_LIBRARY: an NCCL call failed. Since 1.0.
 */
ANNULUS_API_STATUS annulus_status annulus_nccl_id_generate(annulus_nccl_id *id);

/*
 * Makes rank `rank` of an NCCL communicator of `ranks` ranks on CUDA device `device`, in *comm. All ranks call it with
 * the same id. It waits for them for at most creation_timeout, and then returns ANNULUS_ERROR_COMM.
 *
 * ANNULUS_ERROR_ARGUMENT: comm or id is NULL, rank is not below ranks, there is no such device, or options are not as
 * above. ANNULUS_ERROR_DEVICE: the device could not be used. Other errors as annulus_nccl_id_generate(). Since 1.0.
 */
ANNULUS_API_STATUS annulus_status annulus_comm_create_nccl(annulus_comm **comm, const annulus_nccl_id *id,
                                                           int32_t ranks, int32_t rank, int32_t device,
                                                           const annulus_comm_options *options);

/*
 * Makes the ends of an NCCL communicator over `ranks` CUDA devices of this process, in comms[0 … ranks - 1]. comms[i]
 * is for a context on devices[i], and a thread of its own uses it. If devices is NULL, the devices are 0 … ranks - 1.
 * No device may stand there twice. Errors as annulus_comm_create_nccl(). Since 1.0.
 */
ANNULUS_API_STATUS annulus_status annulus_comm_create_nccl_devices(annulus_comm **comms, int32_t ranks,
                                                                   const int32_t *devices,
                                                                   const annulus_comm_options *options);

/*
 * Makes a communicator, in *comm, that uses an existing ncclComm_t. nccl_comm points to the ncclComm_t. It must belong
 * to the libnccl.so.2 that annulus opens (annulus_nccl_id_generate()). It must not belong to another copy of NCCL, or
 * to an NCCL that is linked statically into the program. It stays the caller's and must outlive the annulus
 * communicator. Nobody else may use it while an annulus call runs. The ranks have met already, so creation_timeout has
 * no effect.
 *
 * Without ANNULUS_COMM_MAY_ABORT annulus never aborts the ncclComm_t. A failure then breaks only the annulus
 * communicator: its calls fail at once, and annulus does not call NCCL any more. Kernels of NCCL that are in a stream
 * already may wait there for another rank, until the caller aborts the ncclComm_t. Destroy the annulus communicator
 * before that. Destroying it does not wait for those kernels. Some kilobytes of memory, which they may use, stay
 * allocated for good.
 *
 * With ANNULUS_COMM_MAY_ABORT annulus aborts the ncclComm_t on failure, which stops those kernels. Once
 * annulus_comm_status() tells that the communicator is broken, the caller must not use the ncclComm_t any more, not
 * even to destroy it.
 *
 * ANNULUS_ERROR_ARGUMENT also if nccl_comm or the ncclComm_t that it points to is NULL. Other errors as
 * annulus_comm_create_nccl(). Since 1.0.
 */
ANNULUS_API_STATUS annulus_status annulus_comm_create_from_nccl(annulus_comm **comm, const void *nccl_comm,
                                                                const annulus_comm_options *options);

/* Writes the number of ranks to *size. ANNULUS_ERROR_ARGUMENT: a pointer is NULL. Any thread. Since 1.0. */
ANNULUS_API_STATUS annulus_status annulus_comm_size(const annulus_comm *comm, int32_t *size);

/* Writes the rank of this end, from 0, to *rank. ANNULUS_ERROR_ARGUMENT: a pointer is NULL. Any thread. Since 1.0. */
ANNULUS_API_STATUS annulus_status annulus_comm_rank(const annulus_comm *comm, int32_t *rank);

/*
 * Sets how many seconds a call waits for another rank before it fails. The number is more than 0; without this call it
 * is 300. On CUDA the timeout also holds for work that waits after a call has returned: if a dead rank holds up NCCL's
 * kernels, they are stopped. Kernels of a borrowed ncclComm_t that annulus may not abort are not stopped. Ranks may
 * have different timeouts.
 *
 * ANNULUS_ERROR_ARGUMENT: comm is NULL or in a call of a context, or seconds is not a finite number above 0. Since 1.0.
 */
ANNULUS_API_STATUS annulus_status annulus_comm_set_timeout(annulus_comm *comm, double seconds);

/*
 * Writes the state of the communicator to *status. Never waits.
 *
 *   - ANNULUS_OK: it is usable, as far as this rank knows. A rank learns that another rank is gone when a call misses
 *     that rank.
 *   - ANNULUS_ERROR_COMM, ANNULUS_ERROR_COMM_LIBRARY: the status with which it broke.
 *   - ANNULUS_ERROR_DEVICE: it broke because the device of this rank failed, and the other ranks did not get its part.
 *
 * If it is broken, this call succeeds all the same. Then annulus_last_error() and its companions tell the calling
 * thread about the failure with which the communicator broke. Over NCCL a communicator may break after a call has
 * returned. So ask when the stream has come past the call, before you use its results. Any thread.
 *
 * ANNULUS_ERROR_ARGUMENT: a pointer is NULL, or comm is of the process that this one was forked from. Since 1.0.
 */
ANNULUS_API_STATUS annulus_status annulus_comm_status(const annulus_comm *comm, annulus_status *status);

/*
 * Breaks the communicator. Calls of other threads of this process that wait in it return ANNULUS_ERROR_COMM. Calls of
 * other processes fail when they miss this rank. Any thread. ANNULUS_ERROR_ARGUMENT: comm is NULL. Since 1.0.
 */
ANNULUS_API annulus_status annulus_comm_abort(annulus_comm *comm);

/*
 * Destroys a rank's end; NULL is legal. It does not wait for other ranks, whose calls fail from then on. If annulus
 * made an NCCL communicator and it is not broken, its last work gets up to 2 seconds, and then it is aborted. Later
 * calls of contexts that have this end are ANNULUS_ERROR_ARGUMENT. A call that is in it returns ANNULUS_ERROR_COMM,
 * unless it has got everything that it waits for. Any thread. Since 1.0.
 */
ANNULUS_API void annulus_comm_destroy(annulus_comm *comm);

/*
 * Makes the context's calls collective over `comm`, which stays the caller's. With NULL the context computes alone
 * again (default). Forgets the shards.
 *
 * ANNULUS_ERROR_ARGUMENT: context is NULL, or comm is bound to another device than the context's.
 * ANNULUS_ERROR_UNSUPPORTED: comm does not work with devices of the context's kind. Since 1.0.
 */
ANNULUS_API_STATUS annulus_status annulus_context_set_comm(annulus_context *context, annulus_comm *comm);

/*
 * How ranks share a sequence. Set `size` to sizeof(annulus_shards), best by ANNULUS_SHARDS_INIT. The sequence is cut
 * into `count` shards, one behind the other. Shard i has lengths[i] >= 0 positions and belongs to rank owners[i]. If
 * owners is NULL, shard i belongs to rank i, and count is the number of ranks. The arrays are read during the call
 * only.
 *
 * If a rank has several shards, its tensors hold their rows one behind the other, in the order of their positions. So
 * every rank can get the same amount of work under causality. With P ranks, make 2P shards as equal as can be, and give
 * shard i to rank min(i, 2P - 1 - i) (zigzag).
 *
 * Two shards exchange messages of their own if they share a segment, if one is within reach of the other's window, or
 * if one has global positions. A rank can have 2^19 of these messages (attention.h).
 */
typedef struct annulus_shards {
    size_t size;
    int32_t ranks; /* from 1 to 4096; in annulus_context_set_shards() the communicator's, or 0 for it */
    int32_t count; /* up to 65536; in annulus_estimate_rank() also 0, with both arrays NULL: one shard a rank, as equal
                      as can be, the first ones longer */
    const int64_t *lengths; /* [count] in host memory */
    const int32_t *owners;  /* [count] in host memory, or NULL */
} annulus_shards;

#define ANNULUS_SHARDS_INIT                                                                                            \
    { sizeof(annulus_shards), 0, 0, NULL, NULL }

/*
 * Sets how the communicator's ranks share the sequence. Calls need it in two cases only: if a rank holds several
 * shards, and if a stream is being captured. Else the ranks tell one another. With NULL each rank has one shard, in the
 * order of the ranks (default).
 *
 * The shards are also a check. A call is
 *
 *   - ANNULUS_ERROR_ARGUMENT on every rank if the ranks' tensors have other rows than some rank has set, or if the
 *     ranks' shards differ and some ranks have several,
 *   - ANNULUS_ERROR_DECLINED on the other ranks if a rank's own tensors do not have the rows that this rank has set.
 *
 * annulus_workspace_size() and annulus_estimate_problem() ask no other rank. In a context with a communicator they
 * answer for
 *
 *   - these shards, whose lengths must add up to the problem's sequence length,
 *   - if no shards are set, the shards of the context's last call if they add up to that length,
 *   - else shards as equal as can be, the first ones longer.
 *
 * ANNULUS_ERROR_ARGUMENT:
 *
 *   - context is NULL or has no communicator,
 *   - a size is not known, or non-zero bytes follow what this version knows,
 *   - ranks is neither 0 nor the number of ranks,
 *   - count is not the number of ranks (if owners is NULL) or not in 1 ... 65536 (with owners),
 *   - lengths is NULL, a length is negative, or all are 0,
 *   - an element of owners is no rank.
 *
 * Since 1.0.
 */
ANNULUS_API_STATUS annulus_status annulus_context_set_shards(annulus_context *context, const annulus_shards *shards);

/* Bytes of the rows of K and V, and of dK and dV, that the last successful call of a context sent and received. */
typedef struct annulus_traffic {
    size_t size;             /* sizeof(annulus_traffic) */
    uint64_t sent_bytes;     /* to all other ranks together */
    uint64_t received_bytes; /* from all other ranks together */
} annulus_traffic;

#define ANNULUS_TRAFFIC_INIT                                                                                           \
    { sizeof(annulus_traffic), 0, 0 }

/*
 * Writes the traffic of the context's last successful call to *traffic. ANNULUS_ERROR_ARGUMENT: a pointer is NULL or
 * the size is not known. Since 1.0.
 */
ANNULUS_API_STATUS annulus_status annulus_context_last_traffic(const annulus_context *context,
                                                               annulus_traffic *traffic);

/*
 * Estimates a pass of rank `rank` of shards->ranks, in *estimate, for a problem under the context's config. The context
 * needs no communicator. The shards' lengths add up to the sequence length. pairs and flops are those of all branches.
 *
 * ANNULUS_ERROR_ARGUMENT: shards or rank are not as above. Other errors as annulus_estimate_problem(), which also says
 * how large a plan may be. Since 1.0.
 */
ANNULUS_API_STATUS annulus_status annulus_estimate_rank(annulus_context *context, const annulus_problem *problem,
                                                        annulus_pass pass, const annulus_shards *shards, int32_t rank,
                                                        annulus_estimate *estimate);

/* The greatest number of shards that annulus_shards may have and that annulus_balance_shards() finds. */
#define ANNULUS_MAX_SHARDS 65536

/*
 * Finds shards of a problem under the context's config that give each of `ranks` ranks about the same work. Writes the
 * length of each shard to lengths[], its rank to owners[], as annulus_shards takes them, and the number of shards to
 * *count. The options of the problem tell the sequences. The context needs no communicator. Every rank that asks with
 * the same problem gets the same shards.
 *
 * The numbers of rows of two ranks differ by at most 1. Each rank has one shard, in the order of the ranks, unless
 * other shards leave the busiest rank less to do: a zigzag, or shards that keep sequences whole and cut few of them.
 * Work is the pairs of queries and keys that a rank computes, the rows of K and V that it receives, and their messages.
 * They are weighed by the rates of a GPU. More than 8 ranks are taken to be on several hosts. For very many ranks and
 * sequences the search stops after about a second with the best shards so far, on every rank the same. The choice may
 * change between versions.
 *
 * capacity: the number of elements of lengths, and of owners. ANNULUS_MAX_SHARDS is always enough.
 *
 * Errors as annulus_estimate_problem() for a forward pass. ANNULUS_ERROR_ARGUMENT also if lengths, owners or count is
 * NULL, or if ranks is not from 1 to 4096. The same if capacity is less than 1 or than the number of shards; the
 * message tells this number. Then nothing was written. Since 1.0.
 */
ANNULUS_API_STATUS annulus_status annulus_balance_shards(annulus_context *context, const annulus_problem *problem,
                                                         int32_t ranks, int32_t capacity, int64_t *lengths,
                                                         int32_t *owners, int32_t *count);

ANNULUS_END_DECLS

#endif
