/* SPDX-License-Identifier: Apache-2.0 */
/* Written by bindings/emit.py from the C headers; a test fails when they differ. */
/* Prints how the compiler lays out every struct of the API: its size, and each field's offset and size. */
#include <annulus/annulus.h>
#include <stddef.h>
#include <stdio.h>

#define STRUCT(type) printf(#type " %zu\n", sizeof(type))
#define FIELD(type, field) printf(#type "." #field " %zu %zu\n", offsetof(type, field), sizeof(((type *)0)->field))

int main(void) {
    STRUCT(annulus_tensor);
    FIELD(annulus_tensor, data);
    FIELD(annulus_tensor, dtype);
    FIELD(annulus_tensor, ndim);
    FIELD(annulus_tensor, shape);
    FIELD(annulus_tensor, stride);
    STRUCT(annulus_branch);
    FIELD(annulus_branch, size);
    FIELD(annulus_branch, segment_length);
    FIELD(annulus_branch, dilation);
    FIELD(annulus_branch, residue);
    FIELD(annulus_branch, grid_width);
    FIELD(annulus_branch, first_head);
    FIELD(annulus_branch, head_count);
    FIELD(annulus_branch, phase_rule);
    FIELD(annulus_branch, query_rule);
    FIELD(annulus_branch, order);
    FIELD(annulus_branch, left);
    FIELD(annulus_branch, right);
    FIELD(annulus_branch, first_global);
    FIELD(annulus_branch, global_count);
    FIELD(annulus_branch, kind);
    FIELD(annulus_branch, global_queries);
    STRUCT(annulus_allocator);
    FIELD(annulus_allocator, size);
    FIELD(annulus_allocator, allocate);
    FIELD(annulus_allocator, release);
    FIELD(annulus_allocator, user);
    STRUCT(annulus_call_options);
    FIELD(annulus_call_options, size);
    FIELD(annulus_call_options, flags);
    FIELD(annulus_call_options, query_start);
    FIELD(annulus_call_options, sequence_count);
    FIELD(annulus_call_options, sequence_starts);
    FIELD(annulus_call_options, sequence_lengths);
    STRUCT(annulus_merge_options);
    FIELD(annulus_merge_options, size);
    FIELD(annulus_merge_options, flags);
    STRUCT(annulus_problem);
    FIELD(annulus_problem, size);
    FIELD(annulus_problem, dtype);
    FIELD(annulus_problem, gradient_dtype);
    FIELD(annulus_problem, heads);
    FIELD(annulus_problem, kv_heads);
    FIELD(annulus_problem, head_dim);
    FIELD(annulus_problem, batch);
    FIELD(annulus_problem, sequence_length);
    FIELD(annulus_problem, query_length);
    FIELD(annulus_problem, row_alignment);
    FIELD(annulus_problem, options);
    STRUCT(annulus_estimate);
    FIELD(annulus_estimate, size);
    FIELD(annulus_estimate, pairs);
    FIELD(annulus_estimate, flops);
    FIELD(annulus_estimate, tensor_bytes);
    FIELD(annulus_estimate, workspace_bytes);
    FIELD(annulus_estimate, sent_bytes);
    FIELD(annulus_estimate, received_bytes);
    FIELD(annulus_estimate, plan_bytes);
    FIELD(annulus_estimate, exchange);
    FIELD(annulus_estimate, received_messages);
    STRUCT(annulus_comm_options);
    FIELD(annulus_comm_options, size);
    FIELD(annulus_comm_options, creation_timeout);
    FIELD(annulus_comm_options, flags);
    STRUCT(annulus_nccl_id);
    FIELD(annulus_nccl_id, bytes);
    STRUCT(annulus_shards);
    FIELD(annulus_shards, size);
    FIELD(annulus_shards, ranks);
    FIELD(annulus_shards, count);
    FIELD(annulus_shards, lengths);
    FIELD(annulus_shards, owners);
    STRUCT(annulus_traffic);
    FIELD(annulus_traffic, size);
    FIELD(annulus_traffic, sent_bytes);
    FIELD(annulus_traffic, received_bytes);
    return 0;
}
