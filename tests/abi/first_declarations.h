/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the headers of annulus declared when ABI 1 began, as the preprocessor left it. It never changes: the program
 * beside it stands for all that were compiled then.
 */
#include <stddef.h>
#include <stdint.h>

typedef enum annulus_status {
    ANNULUS_OK = 0,
    ANNULUS_ERROR_ARGUMENT = 1,
    ANNULUS_ERROR_UNSUPPORTED = 2,
    ANNULUS_ERROR_MEMORY = 3,
    ANNULUS_ERROR_WORKSPACE = 4,
    ANNULUS_ERROR_DECLINED = 5,
    ANNULUS_ERROR_DEVICE = 100,
    ANNULUS_ERROR_COMM = 101,
    ANNULUS_ERROR_COMM_LIBRARY = 102,
    ANNULUS_ERROR_INTERNAL = 103
} annulus_status;
const char *annulus_status_name(annulus_status status);
const char *annulus_last_error(void);
uint64_t annulus_last_error_bytes(void);
const char *annulus_last_error_library(void);
int64_t annulus_last_error_code(void);

typedef struct annulus_config annulus_config;
typedef enum annulus_phase_rule {
    ANNULUS_PHASE_BLOCK = 0,
    ANNULUS_PHASE_INTERLEAVE = 1,
    ANNULUS_PHASE_FIXED = 2
} annulus_phase_rule;
typedef enum annulus_query_rule {
    ANNULUS_QUERY_DILATED = 0,
    ANNULUS_QUERY_RESIDUE = 1,
    ANNULUS_QUERY_EVERY = 2
} annulus_query_rule;
typedef enum annulus_order { ANNULUS_ORDER_LINEAR = 0, ANNULUS_ORDER_HILBERT = 1 } annulus_order;
typedef enum annulus_padding_rule { ANNULUS_PADDING_EXACT = 0, ANNULUS_PADDING_ZERO_KEYS = 1 } annulus_padding_rule;
typedef enum annulus_key_rule { ANNULUS_KEY_EACH_BRANCH = 0, ANNULUS_KEY_ONCE = 1 } annulus_key_rule;
typedef enum annulus_engine {
    ANNULUS_ENGINE_AUTO = 0,
    ANNULUS_ENGINE_REFERENCE = 1,
    ANNULUS_ENGINE_CPU = 2,
    ANNULUS_ENGINE_GEMM = 3,
    ANNULUS_ENGINE_FUSED = 4,
    ANNULUS_ENGINE_MMA = 5
} annulus_engine;
const char *annulus_engine_name(annulus_engine engine);
annulus_status annulus_config_create(annulus_config **config);
annulus_status annulus_config_copy(annulus_config **copy, const annulus_config *config);
void annulus_config_destroy(annulus_config *config);
typedef struct annulus_branch {
    size_t size;
    int64_t segment_length;
    int64_t dilation;
    int64_t residue;
    int64_t grid_width;
    int32_t first_head;
    int32_t head_count;
    annulus_phase_rule phase_rule;
    annulus_query_rule query_rule;
    annulus_order order;
} annulus_branch;
annulus_status annulus_config_add_branch(annulus_config *config, const annulus_branch *branch, int32_t *index);
annulus_status annulus_config_set_branch(annulus_config *config, int32_t index, const annulus_branch *branch);
annulus_status annulus_config_get_branch(const annulus_config *config, int32_t index, annulus_branch *branch);
annulus_status annulus_config_branch_count(const annulus_config *config, int32_t *count);
annulus_status annulus_config_set_padding_rule(annulus_config *config, annulus_padding_rule rule);
annulus_status annulus_config_get_padding_rule(const annulus_config *config, annulus_padding_rule *rule);
annulus_status annulus_config_set_key_rule(annulus_config *config, annulus_key_rule rule);
annulus_status annulus_config_get_key_rule(const annulus_config *config, annulus_key_rule *rule);
annulus_status annulus_config_set_head_shard(annulus_config *config, int32_t first, int32_t total);
annulus_status annulus_config_get_head_shard(const annulus_config *config, int32_t *first, int32_t *total);
annulus_status annulus_config_set_causal(annulus_config *config, int causal);
annulus_status annulus_config_get_causal(const annulus_config *config, int *causal);
annulus_status annulus_config_set_scale(annulus_config *config, double scale);
annulus_status annulus_config_unset_scale(annulus_config *config);
annulus_status annulus_config_get_scale(const annulus_config *config, double *scale);
annulus_status annulus_config_set_engine(annulus_config *config, annulus_engine engine);
annulus_status annulus_config_get_engine(const annulus_config *config, annulus_engine *engine);
annulus_status annulus_config_set_allow_tf32(annulus_config *config, int allow);
annulus_status annulus_config_get_allow_tf32(const annulus_config *config, int *allow);
annulus_status annulus_config_set_workspace_limit(annulus_config *config, uint64_t bytes);
annulus_status annulus_config_get_workspace_limit(const annulus_config *config, uint64_t *bytes);
typedef enum annulus_exchange {
    ANNULUS_EXCHANGE_AUTO = 0,
    ANNULUS_EXCHANGE_RING = 1,
    ANNULUS_EXCHANGE_GATHER = 2
} annulus_exchange;
annulus_status annulus_config_set_exchange(annulus_config *config, annulus_exchange exchange);
annulus_status annulus_config_get_exchange(const annulus_config *config, annulus_exchange *exchange);
annulus_status annulus_config_add_longnet(annulus_config *config, int64_t segment_length, int64_t segment_ratio,
                                          int64_t dilation_ratio, int32_t count);
annulus_status annulus_config_add_preset(annulus_config *config, const char *name);
const char *annulus_preset_name(int32_t index);
annulus_status annulus_config_add_head_groups(annulus_config *config, int32_t heads, int32_t count,
                                              const int64_t *segment_lengths, const int64_t *dilations);

typedef struct annulus_context annulus_context;
typedef enum annulus_device { ANNULUS_DEVICE_CPU = 1, ANNULUS_DEVICE_CUDA = 2 } annulus_device;
annulus_status annulus_device_count(annulus_device device, int32_t *count);
typedef struct annulus_allocator {
    size_t size;
    void *(*allocate)(void *user, size_t bytes, size_t alignment, void *stream);
    void (*release)(void *user, void *memory, size_t bytes, size_t alignment, void *stream);
    void *user;
} annulus_allocator;
annulus_status annulus_context_create(annulus_context **context, annulus_device device, int32_t index);
void annulus_context_destroy(annulus_context *context);
annulus_status annulus_context_set_config(annulus_context *context, const annulus_config *config);
annulus_status annulus_context_copy_config(annulus_config **config, const annulus_context *context);
annulus_status annulus_context_set_stream(annulus_context *context, void *stream);
annulus_status annulus_context_set_allocator(annulus_context *context, const annulus_allocator *allocator);
annulus_status annulus_context_set_workspace(annulus_context *context, void *workspace, size_t bytes);
annulus_status annulus_context_set_threads(annulus_context *context, int32_t threads);
annulus_status annulus_context_get_threads(const annulus_context *context, int32_t *threads);
annulus_status annulus_context_last_engine(const annulus_context *context, annulus_engine *engine);

typedef enum annulus_dtype {
    ANNULUS_DTYPE_NONE = 0,
    ANNULUS_FLOAT64 = 1,
    ANNULUS_FLOAT32 = 2,
    ANNULUS_BFLOAT16 = 3,
    ANNULUS_FLOAT16 = 4
} annulus_dtype;
typedef struct annulus_tensor {
    void *data;
    annulus_dtype dtype;
    int32_t ndim;
    int64_t shape[4];
    int64_t stride[4];
} annulus_tensor;
int annulus_dtype_bits(annulus_dtype dtype);
const char *annulus_dtype_name(annulus_dtype dtype);

typedef enum annulus_call_flag {
    ANNULUS_CALL_QUERY_WINDOW = 1,
    ANNULUS_CALL_ADD_D_Q = 2,
    ANNULUS_CALL_ADD_D_K = 4,
    ANNULUS_CALL_ADD_D_V = 8
} annulus_call_flag;
typedef struct annulus_call_options {
    size_t size;
    uint64_t flags;
    int64_t query_start;
    int64_t sequence_count;
    const int64_t *sequence_starts;
    const int64_t *sequence_lengths;
} annulus_call_options;
annulus_status annulus_forward(annulus_context *context, const annulus_tensor *q, const annulus_tensor *k,
                               const annulus_tensor *v, const annulus_tensor *out, const annulus_tensor *lse,
                               const annulus_call_options *options);
annulus_status annulus_backward(annulus_context *context, const annulus_tensor *q, const annulus_tensor *k,
                                const annulus_tensor *v, const annulus_tensor *out, const annulus_tensor *lse,
                                const annulus_tensor *d_out, const annulus_tensor *d_lse, const annulus_tensor *d_q,
                                const annulus_tensor *d_k, const annulus_tensor *d_v,
                                const annulus_call_options *options);
annulus_status annulus_attention_mass(annulus_context *context, const annulus_tensor *q, const annulus_tensor *k,
                                      const annulus_tensor *lse, const annulus_tensor *mass,
                                      const annulus_call_options *options);
typedef struct annulus_merge_options {
    size_t size;
    uint64_t flags;
} annulus_merge_options;
annulus_status annulus_merge(annulus_context *context, int32_t count, const annulus_tensor *outs,
                             const annulus_tensor *lses, const annulus_tensor *out, const annulus_tensor *lse,
                             const annulus_merge_options *options);
typedef enum annulus_pass { ANNULUS_PASS_FORWARD = 1, ANNULUS_PASS_BACKWARD = 2, ANNULUS_PASS_MASS = 3 } annulus_pass;
typedef struct annulus_problem {
    size_t size;
    annulus_dtype dtype;
    annulus_dtype gradient_dtype;
    int32_t heads;
    int32_t kv_heads;
    int32_t head_dim;
    int64_t batch;
    int64_t sequence_length;
    int64_t query_length;
    int64_t row_alignment;
    const annulus_call_options *options;
} annulus_problem;
typedef struct annulus_estimate {
    size_t size;
    double pairs;
    double flops;
    uint64_t tensor_bytes;
    uint64_t workspace_bytes;
    uint64_t sent_bytes;
    uint64_t received_bytes;
    uint64_t plan_bytes;
    annulus_exchange exchange;
} annulus_estimate;
annulus_status annulus_estimate_problem(annulus_context *context, const annulus_problem *problem, annulus_pass pass,
                                        int32_t branch, annulus_estimate *estimate);
annulus_status annulus_workspace_size(annulus_context *context, const annulus_problem *problem, annulus_pass pass,
                                      uint64_t *bytes);
annulus_status annulus_select_engine(annulus_context *context, const annulus_problem *problem, annulus_pass pass,
                                     annulus_engine *engine);
annulus_status annulus_check_engine(annulus_context *context, const annulus_problem *problem, annulus_pass pass,
                                    annulus_engine engine);

typedef struct annulus_comm annulus_comm;
typedef enum annulus_comm_flag { ANNULUS_COMM_MAY_ABORT = 1 } annulus_comm_flag;
typedef struct annulus_comm_options {
    size_t size;
    double creation_timeout;
    uint64_t flags;
} annulus_comm_options;
annulus_status annulus_comm_create_local(annulus_comm **comms, int32_t ranks, const annulus_comm_options *options);
annulus_status annulus_comm_create_from_mpi(annulus_comm **comm, const void *mpi_comm,
                                            const annulus_comm_options *options);
typedef struct annulus_nccl_id {
    char bytes[128];
} annulus_nccl_id;
annulus_status annulus_nccl_id_generate(annulus_nccl_id *id);
annulus_status annulus_comm_create_nccl(annulus_comm **comm, const annulus_nccl_id *id, int32_t ranks, int32_t rank,
                                        int32_t device, const annulus_comm_options *options);
annulus_status annulus_comm_create_nccl_devices(annulus_comm **comms, int32_t ranks, const int32_t *devices,
                                                const annulus_comm_options *options);
annulus_status annulus_comm_create_from_nccl(annulus_comm **comm, const void *nccl_comm,
                                             const annulus_comm_options *options);
annulus_status annulus_comm_size(const annulus_comm *comm, int32_t *size);
annulus_status annulus_comm_rank(const annulus_comm *comm, int32_t *rank);
annulus_status annulus_comm_set_timeout(annulus_comm *comm, double seconds);
annulus_status annulus_comm_status(const annulus_comm *comm, annulus_status *status);
annulus_status annulus_comm_abort(annulus_comm *comm);
void annulus_comm_destroy(annulus_comm *comm);
annulus_status annulus_context_set_comm(annulus_context *context, annulus_comm *comm);
typedef struct annulus_shards {
    size_t size;
    int32_t ranks;
    int32_t count;
    const int64_t *lengths;
    const int32_t *owners;
} annulus_shards;
annulus_status annulus_context_set_shards(annulus_context *context, const annulus_shards *shards);
typedef struct annulus_traffic {
    size_t size;
    uint64_t sent_bytes;
    uint64_t received_bytes;
} annulus_traffic;
annulus_status annulus_context_last_traffic(const annulus_context *context, annulus_traffic *traffic);
annulus_status annulus_estimate_rank(annulus_context *context, const annulus_problem *problem, annulus_pass pass,
                                     const annulus_shards *shards, int32_t rank, annulus_estimate *estimate);

annulus_status annulus_hilbert_curve(int64_t length, int64_t width, int64_t *positions);

int annulus_version(void);
const char *annulus_version_string(void);
const char *annulus_build_info(void);
typedef enum annulus_feature {
    ANNULUS_FEATURE_FEATURE = 1,
    ANNULUS_FEATURE_STATUS = 2,
    ANNULUS_FEATURE_DTYPE = 3,
    ANNULUS_FEATURE_DEVICE = 4,
    ANNULUS_FEATURE_ENGINE = 5,
    ANNULUS_FEATURE_PASS = 6,
    ANNULUS_FEATURE_PHASE_RULE = 7,
    ANNULUS_FEATURE_QUERY_RULE = 8,
    ANNULUS_FEATURE_ORDER = 9,
    ANNULUS_FEATURE_PADDING_RULE = 10,
    ANNULUS_FEATURE_KEY_RULE = 11,
    ANNULUS_FEATURE_EXCHANGE = 12,
    ANNULUS_FEATURE_CALL_FLAG = 13,
    ANNULUS_FEATURE_COMM_FLAG = 14
} annulus_feature;
int annulus_knows(annulus_feature feature, int64_t value);
