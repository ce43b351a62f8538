// SPDX-License-Identifier: Apache-2.0
//! Errors, views, threads and ranks.

use annulus::{attention, AbortHandle, Branch, Comm, CommOptions, Config, Context, Device, Engine, Error, Exchange};
use annulus::{Bf16, CallOptions, Dtype, KeyRule, Order, Padding, Pass, Phase, Problem, QueryRule, Status, TensorMut};
use annulus::{Shards, TensorRef};
use std::time::Duration;

const SHAPE: [usize; 4] = [1, 64, 4, 16];
const COUNT: usize = 64 * 4 * 16;

fn config() -> Config {
    Config::builder().branch(16, 1).branch(64, 4).causal(true).build().unwrap()
}

fn numbers(seed: usize) -> Vec<f32> {
    (0..COUNT).map(|i| ((i * 37 + seed * 101) % 64) as f32 / 32.0 - 1.0).collect()
}

fn tensor(numbers: &[f32]) -> TensorRef<'_, f32> {
    TensorRef::new(numbers, &SHAPE).unwrap()
}

#[test]
fn errors_carry_status_and_message() {
    let error = Config::builder().branch(16, 1).branch(-1, 1).branch(0, -5).build().unwrap_err();
    assert_eq!(error.status(), Status::ARGUMENT);
    assert!(error.message().contains("segment_length is -1"), "{error}");
    assert_eq!(error.to_string(), format!("argument error: {}", error.message()));
    let error: Box<dyn std::error::Error + Send + Sync> = Box::new(error);
    assert!(error.downcast_ref::<Error>().is_some());

    let error = Context::cpu(&Config::builder().build().unwrap()).unwrap_err();
    assert_eq!(error.status(), Status::ARGUMENT);

    let rows = vec![0.0_f32; 64 * 4 * 12];
    let odd = TensorRef::new(&rows, &[1, 64, 4, 12]).unwrap();
    assert_eq!(attention(&odd, &odd, &odd, &config()).unwrap_err().status(), Status::UNSUPPORTED);
}

#[test]
fn a_workspace_that_is_too_small_is_told_in_bytes() {
    let x = numbers(1);
    let x = tensor(&x);
    let limited = |bytes| Config::builder().branch(16, 1).workspace_limit(bytes).build().unwrap();
    let error = attention(&x, &x, &x, &limited(1)).unwrap_err();
    assert_eq!((error.status(), error.status().name()), (Status::WORKSPACE, "workspace"));
    assert!(attention(&x, &x, &x, &limited(error.bytes() - 1)).is_err());
    assert!(attention(&x, &x, &x, &limited(error.bytes())).is_ok());
}

#[test]
fn unknown_statuses_are_kept() {
    let status = Status::from_code(12345);
    assert_eq!((status.code(), status.name()), (12345, "unknown"));
    assert_ne!(status, Status::INTERNAL);
    assert_eq!(Engine::from_code(999).name(), "unknown");
}

#[test]
fn views_stay_inside_their_slices() {
    let data = vec![0.0_f32; 100];
    assert!(TensorRef::new(&data, &[1, 2, 3, 16]).is_ok());
    assert!(TensorRef::with_strides(&data, &[2, 4], &[96, 1]).is_ok());
    assert!(TensorRef::with_strides(&data, &[1000, 4], &[0, 1]).is_ok());
    for (shape, strides) in [
        (vec![2, 4], vec![97, 1]),
        (vec![2, 4], vec![96]),
        (vec![usize::MAX, usize::MAX], vec![usize::MAX, usize::MAX]),
        (vec![1, 1, 1, 1, 1], vec![1; 5]),
        (vec![], vec![]),
    ] {
        let error = TensorRef::with_strides(&data, &shape, &strides).unwrap_err();
        assert_eq!(error.status(), Status::ARGUMENT);
    }
    assert!(TensorRef::new(&data, &[1, 101]).is_err());
    // A result that no memory holds is an error, not an abort.
    let huge = TensorRef::with_strides(&data, &[1, 1 << 50, 1 << 12, 8], &[0, 0, 0, 1]).unwrap();
    assert_eq!(attention(&huge, &huge, &huge, &config()).unwrap_err().status(), Status::ARGUMENT);
}

#[test]
fn sequences_that_cannot_be() {
    let input = numbers(1);
    let x = tensor(&input);
    let mut out = vec![0.0_f32; COUNT];
    let mut context = Context::cpu(&config()).unwrap();
    let mut error = |options: CallOptions<'_>| {
        let mut out = TensorMut::new(&mut out, &SHAPE).unwrap();
        context.forward(&x, &x, &x, &mut out, None, &options).unwrap_err()
    };
    let cases = [
        (CallOptions::new().sequence_starts(&[0, 65]), "sequence_starts[1] is 65; it must be at most 64"),
        (
            CallOptions::new().sequence_starts(&[9, 8]),
            "sequence_starts[1] is 8; it must be at least sequence_starts[0], 9",
        ),
        (CallOptions::new().sequence_starts(&[]), "sequence_count of options is -1"),
        (CallOptions::new().sequence_starts(&[0]), "sequence_starts is not NULL"),
        (CallOptions::new().sequence_lengths(&[]), "sequence_lengths is not NULL"),
        (CallOptions::new().sequence_lengths(&[1, 2]), "it must be the batch, 1"),
        (CallOptions::new().sequence_lengths(&[65]), "sequence_lengths[0] is 65; it must be at most 64"),
        (CallOptions::new().sequence_starts(&[0, 9]).sequence_lengths(&[1, 2]), "it must have one more"),
    ];
    for (options, words) in cases {
        let error = error(options);
        assert_eq!(error.status(), Status::ARGUMENT);
        assert!(error.to_string().contains(words), "{error}");
    }
    let mut problem = Problem::new(Dtype::FLOAT32, 1, 64, 4, 16);
    problem.options = CallOptions::new().sequence_lengths(&[65]);
    let problem_message = Context::cpu(&config()).unwrap().estimate(&problem, Pass::Forward).unwrap_err().to_string();
    assert!(problem_message.contains("sequence_lengths[0] is 65; it must be at most 64"), "{problem_message}");
}

#[test]
fn sequences_are_computed_as_if_alone() {
    let input = numbers(1);
    let x = tensor(&input);
    let row = 4 * 16;
    let alone = |from: usize, to: usize| {
        let part = TensorRef::new(&input[from * row..to * row], &[1, to - from, 4, 16]).unwrap();
        attention(&part, &part, &part, &config()).unwrap().out
    };
    let mut out = vec![f32::NAN; COUNT];
    let mut context = Context::cpu(&config()).unwrap();
    let mut forward = |options: CallOptions<'_>| {
        let mut view = TensorMut::new(&mut out, &SHAPE).unwrap();
        context.forward(&x, &x, &x, &mut view, None, &options).unwrap();
        out.clone()
    };
    let packed = forward(CallOptions::new().sequence_starts(&[3, 30, 64]).sequence_lengths(&[27, 31]));
    assert_eq!(packed[3 * row..30 * row], alone(3, 30));
    assert_eq!(packed[30 * row..61 * row], alone(30, 61));
    assert!(packed[..3 * row].iter().chain(&packed[61 * row..]).all(|value| *value == 0.0));
    let padded = forward(CallOptions::new().sequence_lengths(&[30]));
    assert_eq!(padded[..30 * row], alone(0, 30));
    assert!(padded[30 * row..].iter().all(|value| *value == 0.0));
}

#[test]
fn outputs_may_not_repeat() {
    let input = numbers(1);
    let mut row = vec![0.0_f32; 4 * 16];
    let mut out = TensorMut::with_strides(&mut row, &SHAPE, &[0, 0, 16, 1]).unwrap();
    let mut context = Context::cpu(&config()).unwrap();
    let x = tensor(&input);
    assert_eq!(
        context.forward(&x, &x, &x, &mut out, None, &CallOptions::new()).unwrap_err().status(),
        Status::ARGUMENT
    );
}

#[test]
fn packed_tensors_give_what_separate_ones_give() {
    let (q, k, v) = (numbers(1), numbers(2), numbers(3));
    let mut packed = Vec::new();
    for n in 0..64 {
        for part in [&q, &k, &v] {
            packed.extend_from_slice(&part[n * 64..(n + 1) * 64]);
        }
    }
    let view = |part: usize| TensorRef::with_strides(&packed[part * 64..], &SHAPE, &[COUNT * 3, 192, 16, 1]).unwrap();
    let separate = attention(&tensor(&q), &tensor(&k), &tensor(&v), &config()).unwrap();
    let together = attention(&view(0), &view(1), &view(2), &config()).unwrap();
    assert_eq!(separate.out, together.out);
    assert_eq!(separate.lse, together.lse);
}

#[test]
fn contexts_work_in_several_threads() {
    fn is_send<T: Send>() {}
    fn is_sync<T: Sync>() {}
    is_send::<Context>();
    is_send::<Comm>();
    is_send::<TensorMut<'_, f32>>();
    is_send::<Config>();
    is_sync::<Config>();
    is_send::<AbortHandle>();
    is_sync::<AbortHandle>();

    let config = config();
    let x = numbers(5);
    let expected = attention(&tensor(&x), &tensor(&x), &tensor(&x), &config).unwrap().out;
    std::thread::scope(|scope| {
        for _ in 0..4 {
            // The context is made here and used in another thread.
            let mut context = Context::cpu(&config).unwrap();
            let (x, expected) = (&x, &expected);
            scope.spawn(move || {
                for _ in 0..20 {
                    let mut out = vec![f32::NAN; COUNT];
                    let x = tensor(x);
                    context
                        .forward(&x, &x, &x, &mut TensorMut::new(&mut out, &SHAPE).unwrap(), None, &CallOptions::new())
                        .unwrap();
                    assert_eq!(&out, expected);
                }
            });
        }
    });
}

#[test]
fn errors_belong_to_their_threads() {
    std::thread::scope(|scope| {
        for i in 1..5_i64 {
            scope.spawn(move || {
                for _ in 0..100 {
                    let error = Config::builder().branch(-i, 1).build().unwrap_err();
                    assert!(error.message().contains(&format!("is -{i}")), "{error}");
                }
            });
        }
    });
}

#[test]
fn ranks_give_what_one_gives() {
    let (q, k, v) = (numbers(1), numbers(2), numbers(3));
    let expected = attention(&tensor(&q), &tensor(&k), &tensor(&v), &config()).unwrap().out;
    let lengths = [40, 24];
    let mut out = vec![f32::NAN; COUNT];
    let (first, second) = out.split_at_mut(40 * 64);
    let config = config();
    let work = |comm: Comm, start: usize, out: &mut [f32]| -> annulus::Result<u64> {
        let rank = comm.rank()? as usize;
        assert_eq!(comm.size()?, 2);
        let shape = [1, lengths[rank] as usize, 4, 16];
        let mut context = Context::cpu(&config)?;
        assert!(context.set_comm(Some(comm))?.is_none());
        context.set_shards(Some(Shards::new(&lengths)))?;
        let part = |rows| TensorRef::new(rows, &shape);
        let (q, k, v) = (part(&q[start * 64..])?, part(&k[start * 64..])?, part(&v[start * 64..])?);
        context.forward(&q, &k, &v, &mut TensorMut::new(out, &shape)?, None, &CallOptions::new())?;
        Ok(context.last_traffic()?.received_bytes)
    };
    let comms = Comm::local(2).unwrap();
    std::thread::scope(|scope| {
        let work = &work;
        let places = [(0, first), (40, second)];
        let ranks: Vec<_> = comms
            .into_iter()
            .zip(places)
            .map(|(comm, (start, out))| scope.spawn(move || work(comm, start, out)))
            .collect();
        let received: Vec<u64> = ranks.into_iter().map(|rank| rank.join().unwrap().unwrap()).collect();
        assert_eq!(received[0], 0); // causal
        assert!(received[1] > 0);
    });
    for (a, b) in out.iter().zip(&expected) {
        assert!((a - b).abs() < 1e-5);
    }
}

#[test]
fn ranks_with_two_shards_give_what_one_gives() {
    let (q, k, v) = (numbers(1), numbers(2), numbers(3));
    let expected = attention(&tensor(&q), &tensor(&k), &tensor(&v), &config()).unwrap().out;
    let (lengths, owners) = ([17, 15, 20, 12], [0, 1, 1, 0]);
    let rank_rows = |all: &[f32], rank: i32| -> Vec<f32> {
        let mut start = 0;
        let mut rows = Vec::new();
        for (length, owner) in lengths.iter().zip(owners) {
            let end = start + *length as usize * 64;
            if owner == rank {
                rows.extend_from_slice(&all[start..end]);
            }
            start = end;
        }
        rows
    };
    let config = config();
    let work = |comm: Comm| -> annulus::Result<()> {
        let rank = comm.rank()?;
        let (q, k, v) = (rank_rows(&q, rank), rank_rows(&k, rank), rank_rows(&v, rank));
        let shape = [1, q.len() / 64, 4, 16];
        let mut context = Context::cpu(&config)?;
        context.set_comm(Some(comm))?;
        assert!(context.set_shards(Some(Shards::with_owners(&lengths, &[0]))).is_err());
        context.set_shards(Some(Shards::with_owners(&lengths, &owners)))?;
        let part = |rows| TensorRef::new(rows, &shape);
        let mut out = vec![f32::NAN; q.len()];
        let mut rows_of_out = TensorMut::new(&mut out, &shape)?;
        context.forward(&part(&q)?, &part(&k)?, &part(&v)?, &mut rows_of_out, None, &CallOptions::new())?;
        for (a, b) in out.iter().zip(rank_rows(&expected, rank)) {
            assert!((a - b).abs() < 1e-5);
        }
        Ok(())
    };
    std::thread::scope(|scope| {
        let work = &work;
        let ranks: Vec<_> = Comm::local(2).unwrap().into_iter().map(|comm| scope.spawn(move || work(comm))).collect();
        for rank in ranks {
            rank.join().unwrap().unwrap();
        }
    });
}

#[test]
fn contexts_share_a_communicator() {
    let comm = Comm::local(1).unwrap().pop().unwrap();
    let (q, k, v) = (numbers(1), numbers(2), numbers(3));
    let expected = attention(&tensor(&q), &tensor(&k), &tensor(&v), &config()).unwrap().out;
    let work = |comm: Comm| {
        let mut context = Context::cpu(&config()).unwrap();
        context.set_comm(Some(comm)).unwrap();
        for _ in 0..20 {
            let mut out = vec![0.0; COUNT];
            let mut rows = TensorMut::new(&mut out, &SHAPE).unwrap();
            context.forward(&tensor(&q), &tensor(&k), &tensor(&v), &mut rows, None, &CallOptions::new()).unwrap();
            assert_eq!(out, expected);
        }
    };
    std::thread::scope(|scope| {
        let work = &work;
        for comm in [comm.clone(), comm.clone()] {
            scope.spawn(move || work(comm));
        }
    });
    assert_eq!(comm.size().unwrap(), 1); // it lives longer than the contexts
}

#[test]
fn a_rank_that_waits_can_be_freed() {
    let mut comms = Comm::local(2).unwrap();
    let other = comms.pop().unwrap();
    let comm = comms.pop().unwrap();
    let abort = comm.abort_handle();
    let x = numbers(1);
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| {
            let mut context = Context::cpu(&config()).unwrap();
            context.set_comm(Some(comm)).unwrap();
            let mut out = vec![0.0; COUNT];
            let x = tensor(&x);
            context.forward(&x, &x, &x, &mut TensorMut::new(&mut out, &SHAPE).unwrap(), None, &CallOptions::new())
        });
        std::thread::sleep(Duration::from_millis(50));
        assert_eq!(abort.failure(), None);
        abort.abort().unwrap();
        assert_eq!(waiting.join().unwrap().unwrap_err().status(), Status::COMM);
        assert_eq!(other.failure().unwrap().status(), Status::COMM);
    });
    abort.abort().unwrap(); // its communicator was dropped
    assert_eq!(abort.failure(), None);
    let options = CommOptions::default().creation_timeout(Duration::from_secs(1)).only_nccl(true);
    assert_eq!(Comm::nccl_devices(&[], options).unwrap_err().status(), Status::ARGUMENT);
    assert_eq!(Comm::local(0).unwrap_err().status(), Status::ARGUMENT);
    assert_eq!(Comm::local(-1).unwrap_err().status(), Status::ARGUMENT);
}

#[test]
fn a_context_gives_its_communicator_back() {
    let mut comms = Comm::local(1).unwrap();
    let mut context = Context::cpu(&config()).unwrap();
    comms[0].set_timeout(Duration::from_secs(1)).unwrap();
    assert!(comms[0].set_timeout(Duration::ZERO).is_err());
    context.set_comm(comms.pop()).unwrap();
    assert!(context.comm().is_some());
    assert!(context.set_comm(None).unwrap().is_some());
    assert!(context.set_shards(Some(Shards::new(&[64]))).is_err()); // it has no communicator any more
}

#[test]
fn merged_parts_are_one_softmax() {
    let (q, k, v) = (numbers(1), numbers(2), numbers(3));
    let of = |branches: &[(i64, i64)]| {
        let config = branches.iter().fold(Config::builder(), |builder, &(w, r)| builder.branch(w, r)).build().unwrap();
        (attention(&tensor(&q), &tensor(&k), &tensor(&v), &config).unwrap(), config)
    };
    let (whole, config) = of(&[(16, 1), (64, 4)]);
    let (near, far) = (of(&[(16, 1)]).0, of(&[(64, 4)]).0);
    fn statistics(lse: &[f32]) -> TensorRef<'_, f32> {
        TensorRef::new(lse, &[1, 4, 64]).unwrap()
    }
    let parts = [(tensor(&near.out), statistics(&near.lse)), (tensor(&far.out), statistics(&far.lse))];
    let mut context = Context::cpu(&config).unwrap();
    let (mut out, mut merged) = (vec![f32::NAN; COUNT], vec![f32::NAN; 4 * 64]);
    let mut lse = TensorMut::new(&mut merged, &[1, 4, 64]).unwrap();
    context.merge(&parts, &mut TensorMut::new(&mut out, &SHAPE).unwrap(), Some(&mut lse)).unwrap();
    assert!(out.iter().zip(&whole.out).all(|(a, b)| (a - b).abs() < 1e-5));
    assert!(merged.iter().zip(&whole.lse).all(|(a, b)| (a - b).abs() < 1e-5));
    let mut target = TensorMut::new(&mut out, &SHAPE).unwrap();
    assert_eq!(context.merge(&[], &mut target, None).unwrap_err().status(), Status::ARGUMENT);
    assert!(context.merge(&[parts[0]; 49], &mut target, None).is_err());
}

#[test]
fn gradients_are_added_and_wide() {
    let numbers: Vec<f32> = (0..COUNT).map(|i| (i % 13) as f32 / 8.0 - 0.75).collect();
    let x: Vec<Bf16> = numbers.iter().map(|&number| Bf16::from_f32(number)).collect();
    let input = || TensorRef::new(&x, &SHAPE).unwrap();
    let result = attention(&input(), &input(), &input(), &config()).unwrap();
    let out = TensorRef::new(&result.out, &SHAPE).unwrap();
    let lse = TensorRef::new(&result.lse, &[1, 4, 64]).unwrap();
    let mut context = Context::cpu(&config()).unwrap();
    let mut backward = |d_q: &mut [f32], d_k: &mut [Bf16], d_v: &mut [f32], options: &CallOptions<'_>| {
        let mut d_q = TensorMut::new(d_q, &SHAPE).unwrap();
        let mut d_k = TensorMut::new(d_k, &SHAPE).unwrap();
        let mut d_v = TensorMut::new(d_v, &SHAPE).unwrap();
        let x = input();
        context.backward(&x, &x, &x, &out, &lse, &x, None, &mut d_q, &mut d_k, &mut d_v, options).unwrap();
    };
    let (mut d_q, mut d_k, mut d_v) = (vec![f32::NAN; COUNT], vec![Bf16::from_f32(f32::NAN); COUNT], vec![0.0; COUNT]);
    backward(&mut d_q, &mut d_k, &mut d_v, &CallOptions::new());
    assert!(d_q.iter().any(|&number| Bf16::from_f32(number).to_f32() != number));
    let (mut sum_q, mut sum_k, mut sum_v) = (vec![1.0; COUNT], vec![Bf16::from_f32(2.0); COUNT], vec![3.0; COUNT]);
    backward(&mut sum_q, &mut sum_k, &mut sum_v, &CallOptions::new().add_d_q().add_d_v());
    assert!(sum_q.iter().zip(&d_q).all(|(&sum, &number)| sum == 1.0 + number));
    assert!(sum_k == d_k);
    assert!(sum_v.iter().zip(&d_v).all(|(&sum, &number)| sum == 3.0 + number));
    backward(&mut sum_q, &mut sum_k, &mut sum_v, &CallOptions::new().add_d_k());
    assert!(sum_q == d_q && sum_k != d_k && sum_v == d_v);

    let mut problem = Problem::new(Dtype::BFLOAT16, 1, 64, 4, 16);
    let plain = context.estimate(&problem, Pass::Backward).unwrap();
    problem.gradient_dtype = Some(Dtype::FLOAT32);
    assert!(context.estimate(&problem, Pass::Backward).unwrap().tensor_bytes > plain.tensor_bytes);
    problem.gradient_dtype = Some(Dtype::FLOAT16);
    assert_eq!(context.estimate(&problem, Pass::Backward).unwrap_err().status(), Status::ARGUMENT);
}

#[test]
fn costs_and_curves() {
    let context = Context::cpu(&config()).unwrap();
    let problem = Problem::new(Dtype::FLOAT32, 1, 64, 4, 16);
    for (pass, factor) in [(Pass::Forward, 4.0), (Pass::Backward, 10.0), (Pass::Mass, 4.0)] {
        let whole = context.estimate(&problem, pass).unwrap();
        let parts: f64 = (0..2).map(|branch| context.estimate_branch(&problem, pass, branch).unwrap().pairs).sum();
        assert_eq!(whole.pairs, parts);
        assert_eq!(whole.flops, factor * whole.pairs * 16.0);
        assert_eq!(whole.exchange, Exchange::AUTO);
        assert!(context.estimate_branch(&problem, pass, 2).is_err());
        assert_eq!(context.workspace_size(&problem, pass).unwrap(), whole.workspace_bytes);
        let rank = |lengths| context.estimate_rank(&problem, pass, Some(Shards::new(lengths)), 2, 1);
        assert!(rank(&[32, 32]).unwrap().received_bytes > 0);
        assert_eq!(rank(&[32, 32]).unwrap(), context.estimate_rank(&problem, pass, None, 2, 1).unwrap());
        assert!(rank(&[32]).is_err());
    }
    let mut window = problem;
    window.options = CallOptions::new().query_start(60);
    window.query_length = 4;
    assert!(context.estimate(&window, Pass::Forward).unwrap().pairs > 0.0);
    window.query_length = 0;
    assert!(context.estimate(&window, Pass::Forward).unwrap_err().to_string().contains("query_length is 0"));
    assert_eq!(context.select_engine(&problem, Pass::Mass).unwrap(), Engine::CPU);
    assert_eq!(context.check_engine(&problem, Pass::Forward, Engine::REFERENCE), Ok(()));
    let refused = context.check_engine(&problem, Pass::Forward, Engine::GEMM).unwrap_err();
    assert_eq!((refused.status(), refused.library(), refused.code()), (Status::UNSUPPORTED, "", 0));

    let mut curve = annulus::hilbert_curve(35, 7).unwrap();
    curve.sort_unstable();
    assert_eq!(curve, (0..35).collect::<Vec<i64>>());
    assert!(annulus::hilbert_curve(0, 0).is_err());
    assert!(annulus::hilbert_curve(usize::MAX, 0).is_err());
    assert!(Config::builder().push(Branch::new(64, 2).order(Order::Hilbert(7))).build().is_err());
    assert_eq!(Device::Cpu.count().unwrap(), 1);
    assert!(annulus::build_info().contains(annulus::version()));
}

#[test]
fn configs_can_be_copied() {
    let config = Config::gigapath().longnet(16, 2, 2, 3).head_groups(4, &[(16, 1), (64, 4)]).build().unwrap();
    assert_eq!(config.branch_count(), 10);
    let copy = config.try_clone().unwrap();
    drop(config);
    assert_eq!(copy.branch_count(), 10);
}

#[test]
fn configs_are_read_back() {
    let branches = [
        Branch::new(24, 5),
        Branch::new(0, 7).heads(3..5).phase(Phase::Fixed(9)).query_rule(QueryRule::Every),
        Branch::new(60, 4)
            .heads(5..i32::MAX)
            .phase(Phase::Interleave)
            .query_rule(QueryRule::Residue)
            .order(Order::Hilbert(12)),
        Branch::window(5, -1, 3).heads(3..5).phase(Phase::Interleave).query_rule(QueryRule::Dilated),
        Branch::global(9, 2, true),
    ];
    let mut builder = Config::builder().causal(true).scale(-0.3).padding(Padding::ZeroKeys).engine(Engine::REFERENCE);
    for branch in &branches {
        builder = builder.push(branch.clone());
    }
    let config = builder
        .key_rule(KeyRule::Once)
        .head_shard(3, 9)
        .allow_tf32(true)
        .workspace_limit(1 << 40)
        .exchange(Exchange::RING)
        .build()
        .unwrap();
    for read in [&config, &Context::cpu(&config).unwrap().config().unwrap()] {
        assert_eq!(read.branches().unwrap(), branches);
        assert!(read.causal() && read.allow_tf32());
        assert_eq!(read.scale(), Some(-0.3));
        assert_eq!(read.padding(), Padding::ZeroKeys);
        assert_eq!(read.key_rule(), KeyRule::Once);
        assert_eq!(read.head_shard(), Some((3, 9)));
        assert_eq!(read.engine(), Engine::REFERENCE);
        assert_eq!(read.workspace_limit(), 1 << 40);
        assert_eq!(read.exchange(), Exchange::RING);
    }
    let config = Config::builder().branch(16, 1).build().unwrap();
    assert_eq!((config.causal(), config.scale(), config.padding()), (false, None, Padding::Exact));
    assert_eq!(config.head_shard(), None);
    let gigapath = Config::gigapath().build().unwrap();
    assert_eq!((gigapath.branch_count(), gigapath.padding()), (5, Padding::ZeroKeys));
    let sliding = Config::sliding(511, 0, 2).build().unwrap();
    assert_eq!((sliding.branches().unwrap(), sliding.causal()), (vec![Branch::window(511, 0, 2)], true));
    assert!(!Config::sliding(7, 7, 1).build().unwrap().causal());
    let longformer = Config::longformer(256, 3, 1).build().unwrap();
    assert_eq!(longformer.branches().unwrap(), [Branch::window(256, 256, 1), Branch::global(0, 3, true)]);
    assert_eq!(longformer.key_rule(), KeyRule::Once);
    assert_eq!(Config::longformer(256, 0, 1).build().unwrap().branch_count(), 1);
    assert_eq!(Config::longformer(256, -1, 1).build().unwrap_err().status(), annulus::Status::ARGUMENT);
    let error = Config::builder().push(Branch::new(16, 1).heads(2..2)).build().unwrap_err();
    assert!(error.message().starts_with("heads is 2..2"), "{error}");
}
