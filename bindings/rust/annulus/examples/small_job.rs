// SPDX-License-Identifier: Apache-2.0
//! Attention over 64 tokens with two dilated branches, and its gradients. The examples of the other languages do the same
//! job and print the same numbers.
//!
//! float32 arrays q, k, v and d_out, each [1, 64, 4, 16], are filled one after the other in row-major order from one
//! generator: state = state * 1664525 + 1013904223 mod 2^32, beginning with state 1; the number is
//! (state >> 8) / 2^23 - 1, exactly.

use annulus::{CallOptions, Config, Context, Result, TensorMut, TensorRef};

const SHAPE: [usize; 4] = [1, 64, 4, 16];
const LSE_SHAPE: [usize; 3] = [1, 4, 64];
const COUNT: usize = 64 * 4 * 16;

fn fill(state: &mut u32) -> Vec<f32> {
    let mut next = || {
        *state = state.wrapping_mul(1664525).wrapping_add(1013904223);
        (*state >> 8) as f32 / 8388608.0 - 1.0
    };
    (0..COUNT).map(|_| next()).collect()
}

fn sum(a: &[f32]) -> f64 {
    a.iter().map(|&x| f64::from(x)).sum()
}

fn dot(a: &[f32], b: &[f32]) -> f64 {
    a.iter().zip(b).map(|(&x, &y)| f64::from(x) * f64::from(y)).sum()
}

fn main() -> Result<()> {
    let mut state = 1;
    let (q, k, v, d_out) = (fill(&mut state), fill(&mut state), fill(&mut state), fill(&mut state));
    let (mut out, mut lse) = (vec![0.0; COUNT], vec![0.0; 4 * 64]);
    let (mut d_q, mut d_k, mut d_v) = (vec![0.0; COUNT], vec![0.0; COUNT], vec![0.0; COUNT]);

    let config = Config::builder().branch(16, 1).branch(64, 4).causal(true).build()?;
    let mut context = Context::cpu(&config)?;
    let rows = |numbers| TensorRef::new(numbers, &SHAPE);
    context.forward(
        &rows(&q)?,
        &rows(&k)?,
        &rows(&v)?,
        &mut TensorMut::new(&mut out, &SHAPE)?,
        Some(&mut TensorMut::new(&mut lse, &LSE_SHAPE)?),
        &CallOptions::new(),
    )?;
    context.backward(
        &rows(&q)?,
        &rows(&k)?,
        &rows(&v)?,
        &rows(&out)?,
        &TensorRef::new(&lse, &LSE_SHAPE)?,
        &rows(&d_out)?,
        None,
        &mut TensorMut::new(&mut d_q, &SHAPE)?,
        &mut TensorMut::new(&mut d_k, &SHAPE)?,
        &mut TensorMut::new(&mut d_v, &SHAPE)?,
        &CallOptions::new(),
    )?;

    println!("sum(out) = {:.6}", sum(&out));
    println!("sum(lse) = {:.6}", sum(&lse));
    println!("out[0..3] = {:.6} {:.6} {:.6} {:.6}", out[0], out[1], out[2], out[3]);
    println!("sum(q * dq) = {:.6}", dot(&q, &d_q));
    println!("sum(k * dk) = {:.6}", dot(&k, &d_k));
    Ok(())
}
