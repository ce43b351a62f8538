// SPDX-License-Identifier: Apache-2.0
//! The structs have the layout that the C compiler gives them. The environment variable ANNULUS_LAYOUT names the C
//! program that prints it.

use annulus_sys::*;
use std::mem::{size_of, MaybeUninit};
use std::ptr::addr_of;

fn size_behind<T>(_: *const T) -> usize {
    size_of::<T>()
}

macro_rules! layout {
    ($($name:ident { $($field:ident),* })*) => {{
        let mut lines = Vec::new();
        $(
            lines.push(format!("{} {}", stringify!($name), size_of::<$name>()));
            let place = MaybeUninit::<$name>::uninit();
            $(
                // Takes addresses only; reads nothing.
                let field = unsafe { addr_of!((*place.as_ptr()).$field) };
                let offset = field as usize - place.as_ptr() as usize;
                lines.push(format!("{}.{} {} {}", stringify!($name), stringify!($field), offset, size_behind(field)));
            )*
        )*
        lines
    }};
}

#[test]
#[ignore = "needs ANNULUS_LAYOUT"]
fn structs_lie_as_in_c() {
    let program = std::env::var("ANNULUS_LAYOUT").expect("ANNULUS_LAYOUT names the C program");
    let output = std::process::Command::new(program).output().expect("the C program runs");
    let told = String::from_utf8(output.stdout).expect("it prints text");
    let mine = layout! {
        annulus_tensor { data, dtype, ndim, shape, stride }
        annulus_branch {
            size, segment_length, dilation, residue, grid_width, first_head, head_count, phase_rule, query_rule, order,
            left, right, first_global, global_count, kind, global_queries
        }
        annulus_allocator { size, allocate, release, user }
        annulus_call_options { size, flags, query_start, sequence_count, sequence_starts, sequence_lengths }
        annulus_merge_options { size, flags }
        annulus_problem {
            size, dtype, gradient_dtype, heads, kv_heads, head_dim, batch, sequence_length, query_length, row_alignment,
            options
        }
        annulus_estimate {
            size, pairs, flops, tensor_bytes, workspace_bytes, sent_bytes, received_bytes, plan_bytes, exchange,
            received_messages
        }
        annulus_comm_options { size, creation_timeout, flags }
        annulus_nccl_id { bytes }
        annulus_shards { size, ranks, count, lengths, owners }
        annulus_traffic { size, sent_bytes, received_bytes }
    };
    assert_eq!(told.lines().collect::<Vec<_>>(), mine);
}
