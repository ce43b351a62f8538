// SPDX-License-Identifier: Apache-2.0
//! The C API and this crate compute the same bits for the same problem. The environment variable ANNULUS_REFERENCE
//! names the C program that computes it (tests/bindings/reference.c describes the problem).

use annulus::{
    attention, Bf16, Branch, CallOptions, Config, Context, Element, Phase, QueryRule, TensorMut, TensorRef, F16,
};
use std::mem::size_of_val;

const B: usize = 2;
const N: usize = 65;
const H: usize = 4;
const G: usize = 2;
const D: usize = 16;
const WINDOW_START: usize = 40;
const QUERY: [usize; 4] = [B, N, H, D];
const KEY: [usize; 4] = [B, N, G, D];
const STATISTICS: [usize; 3] = [B, H, N];

/// The bytes of the C program's file, read from the front.
struct Reference {
    bytes: Vec<u8>,
    place: usize,
}

impl Reference {
    fn new(dtype: i32) -> Reference {
        let program = std::env::var("ANNULUS_REFERENCE").expect("ANNULUS_REFERENCE names the C program");
        let file = std::env::temp_dir().join(format!("annulus-rust-{}-{dtype}", std::process::id()));
        let status = std::process::Command::new(program).arg(dtype.to_string()).arg(&file).status();
        assert!(status.expect("the C program runs").success());
        let bytes = std::fs::read(&file).expect("it writes its file");
        std::fs::remove_file(&file).expect("the file is there");
        Reference { bytes, place: 0 }
    }

    /// Reads the next array.
    fn next<T: Element>(&mut self, shape: &[usize]) -> Vec<T> {
        let mut numbers = vec![T::default(); shape.iter().product()];
        let count = size_of_val(numbers.as_slice());
        let source = &self.bytes[self.place..self.place + count];
        // Any bit pattern is a number of every element type.
        unsafe { std::ptr::copy_nonoverlapping(source.as_ptr(), numbers.as_mut_ptr().cast(), count) };
        self.place += count;
        numbers
    }
}

fn bytes<T: Element>(numbers: &[T]) -> &[u8] {
    unsafe { std::slice::from_raw_parts(numbers.as_ptr().cast(), size_of_val(numbers)) }
}

fn config() -> Config {
    Config::builder()
        .branch(16, 1)
        .push(Branch::new(64, 4).phase(Phase::Interleave).heads(1..4))
        .push(Branch::new(0, 3).query_rule(QueryRule::Residue))
        .push(Branch::window(5, 2, 3).heads(1..i32::MAX))
        .push(Branch::global(7, 2, true))
        .causal(true)
        .scale(0.3)
        .build()
        .unwrap()
}

fn same_as_c<T: Element>(dtype: i32) {
    let mut reference = Reference::new(dtype);
    let (q, k, v) = (reference.next::<T>(&QUERY), reference.next::<T>(&KEY), reference.next::<T>(&KEY));
    let (d_out, d_lse) = (reference.next::<T>(&QUERY), reference.next::<T::Lse>(&STATISTICS));
    let query = |numbers| TensorRef::<T>::new(numbers, &QUERY).unwrap();
    let key = |numbers| TensorRef::<T>::new(numbers, &KEY).unwrap();
    let config = config();

    let result = attention(&query(&q), &key(&k), &key(&v), &config).unwrap();
    let mut context = Context::cpu(&config).unwrap();
    let (mut d_q, mut d_k, mut d_v) =
        (vec![T::default(); q.len()], vec![T::default(); k.len()], vec![T::default(); v.len()]);
    context
        .backward(
            &query(&q),
            &key(&k),
            &key(&v),
            &query(&result.out),
            &TensorRef::new(&result.lse, &STATISTICS).unwrap(),
            &query(&d_out),
            Some(&TensorRef::new(&d_lse, &STATISTICS).unwrap()),
            &mut TensorMut::new(&mut d_q, &QUERY).unwrap(),
            &mut TensorMut::new(&mut d_k, &KEY).unwrap(),
            &mut TensorMut::new(&mut d_v, &KEY).unwrap(),
            &CallOptions::new(),
        )
        .unwrap();

    // A window of the query rows, as a strided view.
    let window = [B, N - WINDOW_START, H, D];
    let mut window_out = vec![T::default(); window.iter().product()];
    let rows = &q[WINDOW_START * H * D..];
    context
        .forward(
            &TensorRef::with_strides(rows, &window, &[N * H * D, H * D, D, 1]).unwrap(),
            &key(&k),
            &key(&v),
            &mut TensorMut::new(&mut window_out, &window).unwrap(),
            None,
            &CallOptions::new().query_start(WINDOW_START as i64),
        )
        .unwrap();

    let mut mass = vec![T::Lse::default(); STATISTICS.iter().product()];
    context
        .attention_mass(
            &query(&q),
            &key(&k),
            &TensorRef::new(&result.lse, &STATISTICS).unwrap(),
            &mut TensorMut::new(&mut mass, &STATISTICS).unwrap(),
            &CallOptions::new(),
        )
        .unwrap();

    assert_eq!(bytes(&result.out), bytes(&reference.next::<T>(&QUERY)), "out");
    assert_eq!(bytes(&result.lse), bytes(&reference.next::<T::Lse>(&STATISTICS)), "lse");
    assert_eq!(bytes(&d_q), bytes(&reference.next::<T>(&QUERY)), "d_q");
    assert_eq!(bytes(&d_k), bytes(&reference.next::<T>(&KEY)), "d_k");
    assert_eq!(bytes(&d_v), bytes(&reference.next::<T>(&KEY)), "d_v");
    assert_eq!(bytes(&window_out), bytes(&reference.next::<T>(&window)), "out of a window");
    assert_eq!(bytes(&mass), bytes(&reference.next::<T::Lse>(&STATISTICS)), "mass");
    assert_eq!(reference.place, reference.bytes.len());
    assert!(bytes(&d_q).iter().any(|&byte| byte != 0));
}

#[test]
#[ignore = "needs ANNULUS_REFERENCE"]
fn float64() {
    same_as_c::<f64>(1);
}

#[test]
#[ignore = "needs ANNULUS_REFERENCE"]
fn float32() {
    same_as_c::<f32>(2);
}

#[test]
#[ignore = "needs ANNULUS_REFERENCE"]
fn bfloat16() {
    same_as_c::<Bf16>(3);
}

#[test]
#[ignore = "needs ANNULUS_REFERENCE"]
fn float16() {
    same_as_c::<F16>(4);
}
