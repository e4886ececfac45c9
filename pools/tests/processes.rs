//! What ends or limits a process. Each case runs this test binary again, as a child that does
//! only that.
#![cfg(unix)]

mod recorded;

use std::os::unix::process::ExitStatusExt as _;
use std::process::{Command, Output};

use mempool_pools::arena::trace::Event;
use mempool_pools::{MemPool, PoolError, default_pool};

#[path = "processes/conf.rs"]
mod conf;

#[global_allocator]
static ALLOC: mempool_pools::PoolAllocator = mempool_pools::PoolAllocator::new();

const BIG: usize = 1 << 20;
/// Names the case that a child process is to run.
const CASE: &str = "MEMPOOL_TEST_CASE";

/// Runs the test `name` of this binary in a child, in which [`is_child`] is true, under a shell
/// that first does `setup`.
fn child(name: &str, setup: &str) -> Output {
    let script = format!("{setup} exec \"$0\" --exact {name} --nocapture --test-threads 1");
    Command::new("sh")
        .args(["-c", &script])
        .arg(std::env::current_exe().unwrap())
        .env(CASE, name)
        .output()
        .unwrap()
}

fn is_child(name: &str) -> bool {
    std::env::var(CASE).is_ok_and(|case| case == name)
}

fn errors(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn a_hard_limit_ends_the_process_with_its_numbers() {
    const NAME: &str = "a_hard_limit_ends_the_process_with_its_numbers";
    if is_child(NAME) {
        let pool = MemPool::builder().name("kept small").hard_limit(4 * BIG).build().unwrap();
        let fits = pool.with(|| vec![1_u8; 2 * BIG]);
        println!("fits: {}", fits.len());
        let too_large = pool.with(|| vec![1_u8; 8 * BIG]);
        println!("too large: {}", too_large.len());
        return;
    }
    let output = child(NAME, "");
    assert_eq!(output.status.signal(), Some(libc_sigabrt()), "{output:?}");
    assert!(String::from_utf8_lossy(&output.stdout).contains("fits: 2097152"));
    assert!(!String::from_utf8_lossy(&output.stdout).contains("too large"));
    let message = errors(&output);
    assert!(message.contains("pool \"kept small\" has a hard limit"), "{message}");
    assert!(message.contains("8388608 bytes requested"), "{message}");
    assert!(message.contains("limit 4194304"), "{message}");
}

const fn libc_sigabrt() -> i32 {
    6
}

#[test]
fn under_a_limit_on_address_space_pools_are_smaller_or_pass_through() {
    const NAME: &str = "under_a_limit_on_address_space_pools_are_smaller_or_pass_through";
    if is_child(NAME) {
        let blocks: Vec<Vec<u8>> = (0..40).map(|k| vec![k; BIG]).collect();
        assert!(blocks.iter().enumerate().all(|(k, block)| block.iter().all(|&byte| byte == k as u8)));
        match MemPool::new() {
            Ok(pool) => {
                let inside = pool.with(|| vec![5_u8; 3 * BIG]);
                println!("pool with {} bytes", pool.stats().requested.current);
                drop(inside);
            }
            Err(error @ PoolError::PassThrough { .. }) => println!("refused: {error}"),
            Err(error) => panic!("{error}"),
        }
        return;
    }
    let roomy = child(NAME, "ulimit -v 4000000;");
    assert!(roomy.status.success(), "{roomy:?}");
    assert!(String::from_utf8_lossy(&roomy.stdout).contains("pool with 3145728 bytes"), "{roomy:?}");
    assert_eq!(errors(&roomy).matches("candle-mempool").count(), 0, "{}", errors(&roomy));
    let tight = child(NAME, "ulimit -v 160000;");
    assert!(tight.status.success(), "{tight:?}");
    let printed = String::from_utf8_lossy(&tight.stdout).into_owned();
    assert!(printed.contains("refused: host pools are not available"), "{printed}");
    let message = errors(&tight);
    assert_eq!(message.matches("candle-mempool").count(), 1, "one clear message: {message}");
    assert!(message.contains("RLIMIT_AS"), "{message}");
}

#[test]
fn a_step_counts_what_happened_since_the_last_mark() {
    const NAME: &str = "a_step_counts_what_happened_since_the_last_mark";
    if !is_child(NAME) {
        // In a process of its own: steps are marked for all pools of a process.
        let output = child(NAME, "");
        assert!(output.status.success(), "{output:?}");
        return;
    }
    let (other, pool) = (MemPool::new().unwrap(), MemPool::new().unwrap());
    drop(pool.with(|| vec![1_u8; BIG]));
    let first = mempool_pools::mark_step();
    drop(pool.with(|| (vec![1_u8; BIG], vec![1_u8; BIG])));
    assert_eq!(mempool_pools::mark_step(), first + 1);
    let step = pool.stats().last_step;
    assert_eq!((step.hits + step.misses, step.requested_bytes), (2, 2 * BIG as u64));
    assert_eq!(other.stats().last_step, mempool_pools::StepStats::default());
}

#[test]
fn steps_are_recorded_between_what_happens_in_them() {
    const NAME: &str = "steps_are_recorded_between_what_happens_in_them";
    if !is_child(NAME) {
        let output = child(NAME, "");
        assert!(output.status.success(), "{output:?}");
        return;
    }
    let (pool, traces) = (MemPool::new().unwrap(), [recorded::Trace::plain(), recorded::Trace::gzipped()]);
    mempool_pools::mark_step();
    let recordings = [pool.record_trace(traces[0].path()), mempool_pools::record_trace(traces[1].path())];
    let rounds = 3_usize;
    for round in 0..rounds {
        drop(pool.with(|| vec![1_u8; (round + 1) * BIG]));
        mempool_pools::mark_step();
    }
    for (recording, trace) in recordings.into_iter().zip(traces) {
        let summary = recording.unwrap().finish().unwrap();
        assert_eq!(summary.steps, rounds as u64);
        // What the test itself allocates is recorded too where all pools are.
        let mut events = trace.events();
        let mut ours = std::collections::HashSet::new();
        events.retain(|event| match event {
            Event::Allocate { id, size_bytes, .. } => *size_bytes >= BIG && ours.insert(*id),
            Event::Free { id } | Event::FreeCompleted { id } => ours.contains(id),
            Event::StepEnd { .. } => true,
        });
        let steps: Vec<[Option<Event>; 4]> =
            events.chunks(4).map(|step| [0, 1, 2, 3].map(|k| step.get(k).copied())).collect();
        assert_eq!(steps.len(), rounds);
        for (round, step) in steps.into_iter().enumerate() {
            let Some(Event::Allocate { id, size_bytes, stream: 0 }) = step[0] else { panic!("{step:?}") };
            assert_eq!(size_bytes, (round + 1) * BIG);
            let number = round as u64 + 1;
            let rest = [Event::Free { id }, Event::FreeCompleted { id }, Event::StepEnd { step: number }];
            assert_eq!(step[1..], rest.map(Some));
        }
    }
}

#[test]
fn a_trace_ends_where_its_file_could_not_grow_even_if_it_can_again() {
    const NAME: &str = "a_trace_ends_where_its_file_could_not_grow_even_if_it_can_again";
    if !is_child(NAME) {
        // Blocks of 512 bytes or 1 KiB, as the shell has it: between one buffer and ten.
        let output = child(NAME, "trap '' XFSZ; ulimit -S -f 300;");
        assert!(output.status.success(), "{output:?}");
        return;
    }
    let (pool, trace) = (MemPool::new().unwrap(), recorded::Trace::plain());
    let recording = pool.record_trace(trace.path()).unwrap();
    let allocate = || (0..20_000).for_each(|_| drop(pool.with(|| Vec::<u8>::with_capacity(BIG))));
    allocate();
    let full_bytes = std::fs::metadata(trace.path()).unwrap().len();
    lift_file_limit();
    allocate();
    let error = recording.finish().unwrap_err();
    let PoolError::Trace { lost_events, .. } = error else { panic!("{error}") };
    assert_eq!(std::fs::metadata(trace.path()).unwrap().len(), full_bytes);
    let events = trace.events();
    assert!(events.len() > 1000, "{} events are there", events.len());
    assert_eq!(events.len() as u64 + lost_events, 120_000);
    assert_eq!(recorded::replayed_peak(&events), BIG);
    pool.validate().unwrap();
}

/// Lets files grow as far as they may by the hard limit.
#[allow(unsafe_code)] // setrlimit has no safe form
fn lift_file_limit() {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: `limit` is a valid place for the result.
    assert_eq!(unsafe { libc::getrlimit(libc::RLIMIT_FSIZE, &raw mut limit) }, 0);
    limit.rlim_cur = limit.rlim_max;
    // SAFETY: `limit` is a valid value.
    assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_FSIZE, &raw const limit) }, 0);
}

#[test]
fn a_forked_child_does_not_write_to_its_parents_trace() {
    const NAME: &str = "a_forked_child_does_not_write_to_its_parents_trace";
    if !is_child(NAME) {
        let output = child(NAME, "");
        assert!(output.status.success(), "{output:?}");
        return;
    }
    let pool = MemPool::new().unwrap();
    let (plain, gzipped) = (recorded::Trace::plain(), recorded::Trace::gzipped());
    let recordings = [plain.path(), gzipped.path()].map(|path| Some(pool.record_trace(path).unwrap()));
    let recordings = std::cell::Cell::new(recordings);
    let kept = pool.with(|| vec![3_u8; 2 * BIG]);
    for round in 0..3 {
        let status = in_fork(|| {
            // Far more than a buffer.
            for _ in 0..10_000 {
                drop(pool.with(|| Vec::<u8>::with_capacity(BIG)));
            }
            mempool_pools::mark_step();
            let [first, second] = recordings.take().map(Option::unwrap);
            match round {
                0 => std::mem::forget((first, second)),
                1 => drop((first, second)),
                _ => {
                    assert_eq!(first.finish(), Err(PoolError::RecordedByParent));
                    assert_eq!(second.finish(), Err(PoolError::RecordedByParent));
                }
            }
            // The child records for itself.
            let own = recorded::Trace::plain();
            let recording = pool.record_trace(own.path()).unwrap();
            drop(pool.with(|| vec![1_u8; BIG]));
            assert_eq!(recording.finish().unwrap().allocations, 2);
            assert_eq!(own.events().len(), 4);
        });
        assert_eq!(status, 0);
    }
    drop(pool.with(|| vec![1_u8; 5 * BIG]));
    drop(kept);
    for recording in recordings.into_inner().into_iter().flatten() {
        assert_eq!(recording.finish().unwrap().events, 6);
    }
    assert_eq!(plain.events(), gzipped.events());
    let sizes = [2 * BIG, 5 * BIG];
    let expected =
        sizes.iter().zip(0..).map(|(&size_bytes, id)| Event::Allocate { id, size_bytes, stream: 0 });
    let is_allocation = |event: &Event| matches!(event, Event::Allocate { .. });
    assert!(plain.events().into_iter().filter(is_allocation).eq(expected));
}

#[test]
fn a_program_may_fork_while_its_threads_are_recorded() {
    const NAME: &str = "a_program_may_fork_while_its_threads_are_recorded";
    if !is_child(NAME) {
        let output = child(NAME, "");
        assert!(output.status.success(), "{output:?}");
        return;
    }
    let (pool, trace) = (MemPool::new().unwrap(), recorded::Trace::gzipped());
    let recording = mempool_pools::record_trace(trace.path()).unwrap();
    let stop = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|threads| {
        for _ in 0..3 {
            threads.spawn(|| {
                while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                    drop(pool.with(|| vec![1_u8; 100_000]));
                    let other = recorded::Trace::plain();
                    drop(pool.record_trace(other.path()).unwrap());
                    mempool_pools::mark_step();
                }
            });
        }
        for _ in 0..100 {
            let status = in_fork(|| {
                drop(pool.with(|| vec![4_u8; 5 * BIG]));
                mempool_pools::mark_step();
                let own = recorded::Trace::plain();
                drop(pool.record_trace(own.path()).unwrap());
                recorded::replayed_peak(&own.events());
            });
            assert_eq!(status, 0);
        }
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
    });
    recording.finish().unwrap();
    let events = trace.events();
    assert!(recorded::replayed_peak(&events) < 50 * BIG);
    let of_children =
        |event: &Event| matches!(event, Event::Allocate { size_bytes, .. } if *size_bytes == 5 * BIG);
    assert!(!events.iter().any(of_children));
}

#[test]
#[cfg(target_os = "linux")]
fn memory_that_the_system_refuses_is_an_error_and_smaller_requests_work() {
    const NAME: &str = "memory_that_the_system_refuses_is_an_error_and_smaller_requests_work";
    if !is_child(NAME) {
        // RLIMIT_DATA refuses to commit, as strict overcommit does, and leaves address space alone.
        let output = child(NAME, "ulimit -d 300000;");
        assert!(output.status.success(), "{output:?}");
        return;
    }
    let pool = MemPool::new().unwrap();
    let kept = pool.with(|| vec![3_u8; 10 * BIG]);
    pool.with(|| {
        let mut block: Vec<u8> = Vec::new();
        assert!(block.try_reserve_exact(600 * BIG).is_err());
        assert!(block.try_reserve_exact(20 * BIG).is_ok());
    });
    pool.validate().unwrap();
    assert!(kept.iter().all(|&byte| byte == 3));
}

#[test]
#[cfg(target_os = "linux")]
fn a_pool_of_fixed_size_that_the_system_refuses_is_an_error_and_leaves_nothing() {
    const NAME: &str = "a_pool_of_fixed_size_that_the_system_refuses_is_an_error_and_leaves_nothing";
    if !is_child(NAME) {
        let output = child(NAME, "ulimit -d 300000;");
        assert!(output.status.success(), "{output:?}");
        return;
    }
    for conf in ["policy:pages", "policy:buckets", "policy:buddy", "policy:bfc", "policy:torch"] {
        let builder = || MemPool::builder().conf(conf).unwrap().headroom_share(0.0);
        let error = builder().fixed_size(400 * BIG).build().unwrap_err();
        let PoolError::Size { asked_bytes, cause: Some(cause), .. } = &error else { panic!("{error}") };
        assert_eq!(*asked_bytes, 400 * BIG);
        assert!(cause.to_string().contains("mprotect"), "{conf}: {cause}");
        // Twice what a refused one could have left fits.
        let pool = builder().fixed_size(100 * BIG).build().unwrap();
        assert_eq!(pool.stats().reserved.current, 100 * BIG);
    }
}

#[test]
#[cfg(target_os = "linux")]
fn the_memory_of_a_fixed_pool_is_there_and_using_it_faults_no_page() {
    const NAME: &str = "the_memory_of_a_fixed_pool_is_there_and_using_it_faults_no_page";
    if !is_child(NAME) {
        let output = child(NAME, "");
        assert!(output.status.success(), "{output:?}");
        return;
    }
    // Small pages, so that a fault comes with every one of them.
    mempool_pools::set_huge_pages(false);
    let before = resident_bytes();
    let pool = MemPool::builder().fixed_size(64 * BIG).headroom_share(0.0).build().unwrap();
    assert!(resident_bytes() >= before + 62 * BIG, "{} after {before}", resident_bytes());
    let faults = minor_faults();
    let block = pool.with(|| vec![1_u8; 40 * BIG]);
    assert_eq!(block[20 * BIG], 1);
    // Of 10,240 pages.
    assert!(minor_faults() - faults < 200, "{} faults", minor_faults() - faults);
    drop((block, pool));
    assert!(resident_bytes() < before + 16 * BIG, "{} after {before}", resident_bytes());
}

/// Bytes of memory that the process has.
#[cfg(target_os = "linux")]
fn resident_bytes() -> usize {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    statm.split_whitespace().nth(1).unwrap().parse::<usize>().unwrap() * 4096
}

#[cfg(target_os = "linux")]
fn minor_faults() -> u64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap();
    // The eighth field behind the name, which may have blanks in it.
    stat.rsplit_once(')').unwrap().1.split_whitespace().nth(7).unwrap().parse().unwrap()
}

#[test]
fn a_block_freed_twice_ends_the_process_instead_of_the_heap() {
    const NAME: &str = "a_block_freed_twice_ends_the_process_instead_of_the_heap";
    if is_child(NAME) {
        free_twice();
        return;
    }
    let output = child(NAME, "");
    assert_eq!(output.status.signal(), Some(libc_sigabrt()), "{output:?}");
    assert!(errors(&output).contains("not the start of a live block"), "{}", errors(&output));
}

#[allow(unsafe_code)] // the fault under test
fn free_twice() {
    let layout = std::alloc::Layout::from_size_align(BIG, 64).unwrap();
    // SAFETY: the layout has a size that is not zero.
    let block = unsafe { std::alloc::alloc(layout) };
    // SAFETY: the block was just allocated with this layout.
    unsafe { std::alloc::dealloc(block, layout) };
    // SAFETY: none; that the allocator notices is what the test is about.
    unsafe { std::alloc::dealloc(block, layout) };
}

/// Forks, runs `f` in the child and returns its exit status; 0 when `f` returns.
#[allow(unsafe_code)] // fork has no safe form
fn in_fork(f: impl FnOnce()) -> i32 {
    // SAFETY: the child runs `f`, which only allocates and frees, and leaves with `_exit`.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(f));
        // SAFETY: always allowed.
        unsafe { libc::_exit(i32::from(result.is_err())) };
    }
    assert!(pid > 0, "fork failed");
    let mut status = 0;
    // SAFETY: `status` is a valid place for the result.
    assert_eq!(unsafe { libc::waitpid(pid, &raw mut status, 0) }, pid);
    status
}

#[test]
fn a_forked_child_allocates_while_the_parents_threads_do() {
    const NAME: &str = "a_forked_child_allocates_while_the_parents_threads_do";
    if !is_child(NAME) {
        // In a process of its own: the threads of other tests would be caught by the fork in
        // places that have nothing to do with pools.
        let output = child(NAME, "");
        assert!(output.status.success(), "{output:?}");
        return;
    }
    let pool = MemPool::new().unwrap();
    let kept = pool.with(|| vec![3_u8; 2 * BIG]);
    let stop = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|threads| {
        for _ in 0..3 {
            threads.spawn(|| {
                while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                    drop(pool.with(|| (vec![1_u8; BIG], vec![0_u8; 100_000])));
                    drop(MemPool::new().unwrap().with(|| vec![1_u8; BIG]));
                }
            });
        }
        for _ in 0..200 {
            let status = in_fork(|| {
                assert!(kept.iter().all(|&byte| byte == 3));
                let block = pool.with(|| vec![4_u8; 5 * BIG]);
                assert!(block.iter().all(|&byte| byte == 4));
                drop(MemPool::new().unwrap().with(|| vec![1_u8; BIG]));
                pool.validate().unwrap();
                default_pool().unwrap().validate().unwrap();
            });
            assert_eq!(status, 0);
        }
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
    });
    assert!(kept.iter().all(|&byte| byte == 3));
    drop(kept);
    assert_eq!(pool.stats().requested.current, 0);
}

#[test]
fn a_forked_child_of_a_program_outside_its_pools_allocates() {
    const NAME: &str = "a_forked_child_of_a_program_outside_its_pools_allocates";
    if !is_child(NAME) {
        let output = child(NAME, "");
        assert!(output.status.success(), "{output:?}");
        return;
    }
    let stop = std::sync::atomic::AtomicBool::new(false);
    let outside = || {
        let block = Vec::<u8>::with_capacity(32 << 10);
        mempool_pools::without_pools(|| drop(std::hint::black_box(block.clone())));
    };
    std::thread::scope(|threads| {
        for _ in 0..3 {
            threads.spawn(|| {
                while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                    mempool_pools::without_pools(outside);
                }
            });
        }
        for _ in 0..500 {
            assert_eq!(in_fork(|| mempool_pools::without_pools(outside)), 0);
        }
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
    });
}

#[test]
#[cfg(target_os = "linux")]
fn a_trim_that_leaves_many_holes_leaves_the_process_able_to_map() {
    const NAME: &str = "a_trim_that_leaves_many_holes_leaves_the_process_able_to_map";
    if !is_child(NAME) {
        // In a process of its own: a process may have so many mappings and no more.
        let output = child(NAME, "");
        assert!(output.status.success(), "{output:?}");
        return;
    }
    let pool = MemPool::new().unwrap();
    // Untouched, so the blocks take address space only.
    let mut blocks: Vec<Option<Vec<u8>>> =
        (0..70_000).map(|_| Some(pool.with(|| Vec::with_capacity(2 * BIG)))).collect();
    let held = blocks.iter().flatten().count();
    blocks.iter_mut().step_by(2).for_each(|block| *block = None);
    let free = pool.stats().releasable_bytes;
    assert!(free >= held / 2 * BIG, "{free} bytes are free");
    assert_eq!(pool.trim().unwrap(), free);
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap().lines().count();
    assert!(maps < 40_000, "{maps} mappings");
    std::thread::spawn(|| drop(vec![1_u8; BIG])).join().unwrap();
    let used: Vec<Vec<u8>> = (0..50).map(|_| pool.with(|| vec![0_u8; 2 * BIG])).collect();
    assert!(used.iter().flatten().all(|&byte| byte == 0));
    pool.validate().unwrap();
}

/// Set in the child by the handler below.
static HANDLER_RAN: std::sync::atomic::AtomicBool = std::sync::atomic::AtomicBool::new(false);

extern "C" fn allocating_handler() {
    drop(std::hint::black_box(vec![1_u8; BIG]));
    HANDLER_RAN.store(true, std::sync::atomic::Ordering::Relaxed);
}

#[test]
#[allow(unsafe_code)] // pthread_atfork has no safe form
fn other_fork_handlers_may_allocate() {
    const NAME: &str = "other_fork_handlers_may_allocate";
    if !is_child(NAME) {
        let output = child(NAME, "");
        assert!(output.status.success(), "{output:?}");
        return;
    }
    // Registered before any pool exists, so it runs while the pools' locks are held.
    let handler: unsafe extern "C" fn() = allocating_handler;
    // SAFETY: the handler lives as long as the process.
    let result = unsafe { libc::pthread_atfork(Some(handler), Some(handler), Some(handler)) };
    assert_eq!(result, 0);
    let pool = MemPool::new().unwrap();
    let block = pool.with(|| vec![1_u8; BIG]);
    assert_eq!(in_fork(|| assert!(HANDLER_RAN.load(std::sync::atomic::Ordering::Relaxed))), 0);
    drop(block);
    assert_eq!(pool.stats().requested.current, 0);
}

#[test]
fn a_forked_child_has_no_monitor_and_its_parents_goes_on() {
    const NAME: &str = "a_forked_child_has_no_monitor_and_its_parents_goes_on";
    if !is_child(NAME) {
        let output = child(NAME, "");
        assert!(output.status.success(), "{output:?}");
        return;
    }
    let often = std::time::Duration::from_millis(1);
    let pool = MemPool::builder().name("watched").build().unwrap();
    for _ in 0..50 {
        let monitor = std::cell::Cell::new(Some(mempool_pools::Monitor::start(often).unwrap()));
        let status = in_fork(|| {
            drop(pool.with(|| vec![1_u8; BIG]));
            // Dropping the parent's waits for nobody, and the child can have its own.
            drop(monitor.take());
            drop(mempool_pools::Monitor::start(often).unwrap());
            mempool_pools::mark_step();
            assert!(mempool_pools::metrics().contains("pool=\"watched\""));
        });
        assert_eq!(status, 0);
    }
    assert!(mempool_pools::stats().pools.iter().any(|seen| seen.name == "watched"));
}

#[test]
fn a_monitor_of_a_program_without_steps_gives_memory_back_at_any_time() {
    const NAME: &str = "a_monitor_of_a_program_without_steps_gives_memory_back_at_any_time";
    if !is_child(NAME) {
        // In a process of its own: elsewhere tests mark steps.
        let output = child(NAME, "");
        assert!(output.status.success(), "{output:?}");
        return;
    }
    let (pool, kept) = cut_up();
    let reserved = pool.stats().reserved.current;
    let often = std::time::Duration::from_millis(5);
    let monitor = mempool_pools::Monitor::builder().interval(often).trims().start().unwrap();
    wait_until(|| pool.stats().reserved.current <= reserved - 16 * BIG);
    drop((monitor, kept));
}

#[test]
fn a_monitor_of_a_program_with_steps_acts_at_the_end_of_one() {
    const NAME: &str = "a_monitor_of_a_program_with_steps_acts_at_the_end_of_one";
    if !is_child(NAME) {
        let output = child(NAME, "");
        assert!(output.status.success(), "{output:?}");
        return;
    }
    // Long against the time between two steps: a program without any is acted upon at once.
    let seldom = std::time::Duration::from_millis(500);
    let (pool, kept) = cut_up();
    let reserved = pool.stats().reserved.current;
    let monitor = mempool_pools::Monitor::builder().interval(seldom).trims().start().unwrap();
    // Steps go on until it has acted, which it does in one of these calls.
    let mut before = reserved;
    wait_until(|| {
        let meanwhile = pool.stats().reserved.current;
        assert_eq!(meanwhile, before, "nothing is given back between steps");
        mempool_pools::mark_step();
        before = pool.stats().reserved.current;
        before <= reserved - 16 * BIG
    });
    drop((monitor, kept));
}

/// A pool of which much is free but split, and much free, and what keeps it so.
fn cut_up() -> (MemPool, Vec<Vec<u8>>) {
    let pool = MemPool::new().unwrap();
    let mut blocks: Vec<Vec<u8>> = pool.with(|| (0..32).map(|_| vec![1_u8; BIG / 4]).collect());
    drop(pool.with(|| vec![1_u8; 16 * BIG]));
    let mut at = 0;
    blocks.retain(|_| {
        at += 1;
        at % 4 == 1
    });
    let stats = pool.stats();
    assert!(stats.split_share() > 0.1 && stats.releasable_bytes >= 16 * BIG, "{stats:?}");
    (pool, blocks)
}

fn wait_until(mut holds: impl FnMut() -> bool) {
    let start = std::time::Instant::now();
    while !holds() {
        assert!(start.elapsed() < std::time::Duration::from_secs(60));
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
}
