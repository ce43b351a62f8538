// SPDX-License-Identifier: Apache-2.0
//! Memory does not grow with objects that were made and dropped. The test has a process of its own, whose memory it
//! reads.

use annulus::{attention, Comm, Config, Context, TensorRef};

/// Returns how many bytes of memory the process uses.
fn resident_bytes() -> usize {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    statm.split_whitespace().nth(1).unwrap().parse::<usize>().unwrap() * 4096
}

fn cycle(x: &TensorRef<'_, f32>) {
    let config = Config::builder().branch(16, 1).branch(64, 4).build().unwrap();
    assert!(Config::builder().branch(-1, 1).build().is_err());
    attention(x, x, x, &config).unwrap();
    let mut context = Context::cpu(&config).unwrap();
    context.set_comm(Comm::local(2).unwrap().pop()).unwrap();
}

#[test]
fn a_thousand_cycles_do_not_grow() {
    let numbers = vec![0.5_f32; 64 * 4 * 16];
    let x = TensorRef::new(&numbers, &[1, 64, 4, 16]).unwrap();
    for _ in 0..100 {
        cycle(&x);
    }
    let before = resident_bytes();
    for _ in 0..1000 {
        cycle(&x);
    }
    let grown = resident_bytes().saturating_sub(before);
    // A leak of one result, 16 KiB, would be 16 MiB.
    assert!(grown < 2 << 20, "{grown} bytes more after 1000 cycles");
}
