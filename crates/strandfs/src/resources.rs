//! What the server takes of the machine: threads and their CPUs, priority, memory for messages.

use std::path::Path;

use rustix::param::page_size;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use rustix::thread::CpuSet;
use strandfs_fuse::{Placement, SessionConfig, TransportChoice, Unpinned, page_limit};
use strandfs_options::{PinThreads, Settings, ThreadSettings, Transport};
use strandfs_pool::admin::features;

/// What `scheduling-priority=auto` tries.
const USUAL_NICE: i32 = -10;

/// How the session is to run.
pub fn session_config(settings: &Settings) -> SessionConfig {
    let mut config = SessionConfig {
        wants: features::wants(settings),
        placement: placement(settings.threads.pin_threads),
        transport: match settings.threads.transport {
            Transport::Auto => TransportChoice::Auto,
            Transport::Dev => TransportChoice::Device,
            Transport::Uring => TransportChoice::Ring,
        },
        ..SessionConfig::default()
    };
    let cpus = std::thread::available_parallelism().map_or(1, usize::from);
    if let Some(most) = settings.threads.most(cpus) {
        config.max_threads = most;
    }
    config.wants.max_pages_limit = max_pages(settings);
    config
}

/// The pages a message may have, with the system's limit raised if it must be.
fn max_pages(settings: &Settings) -> u16 {
    let wanted = settings.requests.fuse_msg_size.pages(page_size() as u64);
    let limit = page_limit::reach(wanted);
    if let Some(before) = limit.raised_from {
        let after = limit.pages;
        tracing::info!("fuse-msg-size: fs.fuse.max_pages_limit raised from {before} to {after}");
    }
    if let Some(error) = limit.refused {
        let pages = limit.pages;
        tracing::warn!(
            "fuse-msg-size: {wanted} pages are more than the kernel's limit of {pages}, which \
             cannot be raised ({error}): messages have {pages} pages; as root, set \
             fs.fuse.max_pages_limit with sysctl"
        );
    }
    limit.pages
}

/// Sets the nice value for this thread and all it starts from now on; returns the refusal of one
/// that was asked for.
pub fn set_priority(settings: &ThreadSettings) -> Option<String> {
    use rustix::process::{getpriority_process, setpriority_process};
    let now = getpriority_process(None).unwrap_or_default();
    let Some(nice) = settings.scheduling_priority else {
        // Whoever started the server with a nice value of their own meant it; and nobody asked
        // for this one, so its refusal is no news.
        if now == 0 {
            let _ = setpriority_process(None, USUAL_NICE);
        }
        return None;
    };
    let errno = setpriority_process(None, nice).err()?;
    Some(format!(
        "scheduling-priority={nice} is refused ({errno}): the nice value stays {now}; lowering it \
         needs root or CAP_SYS_NICE"
    ))
}

/// Open files of the pool are open files of the server: take as many as the system grants.
pub fn raise_descriptor_limit() {
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit {
        current: limit.maximum,
        maximum: limit.maximum,
    };
    if let Err(error) = setrlimit(Resource::Nofile, raised) {
        tracing::debug!(%error, "the limit of open files stays as it is");
    }
}

/// A limit on the size of files is meant for the files of whoever mounted, not for everybody's.
/// Before privileges are given up; a limit that stays makes writes beyond it fail with EFBIG.
pub fn lift_file_size_limit() {
    let limit = getrlimit(Resource::Fsize);
    let most = |maximum| Rlimit {
        current: maximum,
        maximum,
    };
    if limit.current.is_some() && setrlimit(Resource::Fsize, most(None)).is_err() {
        let _ = setrlimit(Resource::Fsize, most(limit.maximum));
    }
}

/// Where `pin-threads` puts the threads, on the CPUs this process may use.
fn placement(strategy: PinThreads) -> Placement {
    match strategy {
        PinThreads::Off => return Placement::default(),
        PinThreads::Anywhere => {
            return Placement {
                unpinned: Unpinned::Anywhere,
                ..Placement::default()
            };
        }
        _ => {}
    }
    match rustix::thread::sched_getaffinity(None) {
        Ok(allowed) => arrange(strategy, &cores(&allowed)),
        Err(errno) => {
            tracing::warn!(%errno, "pin-threads: which CPUs may be used cannot be told");
            Placement::default()
        }
    }
}

/// The allowed CPUs by core, in the order of their numbers.
fn cores(allowed: &CpuSet) -> Vec<Vec<usize>> {
    let mut cores: Vec<Vec<usize>> = Vec::new();
    for cpu in (0..CpuSet::MAX_CPU).filter(|cpu| allowed.is_set(*cpu)) {
        if cores.iter().any(|core| core.contains(&cpu)) {
            continue;
        }
        let name = format!("/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list");
        let listed = std::fs::read_to_string(Path::new(&name)).unwrap_or_default();
        let mut core = parse_list(&listed);
        core.retain(|cpu| *cpu < CpuSet::MAX_CPU && allowed.is_set(*cpu));
        // Where the system does not tell, every CPU is a core.
        if !core.contains(&cpu) {
            core = vec![cpu];
        }
        cores.push(core);
    }
    cores
}

/// `0,4-6` as the kernel writes it.
fn parse_list(text: &str) -> Vec<usize> {
    let numbers = text.trim().split(',').filter_map(|item| {
        let (first, last) = item.split_once('-').unwrap_or((item, item));
        Some(first.parse().ok()?..=last.parse().ok()?)
    });
    numbers.flatten().collect()
}

fn arrange(strategy: PinThreads, cores: &[Vec<usize>]) -> Placement {
    let set = |cpus: &[usize]| {
        let mut set = CpuSet::new();
        cpus.iter().for_each(|cpu| set.set(*cpu));
        set
    };
    let mut all: Vec<usize> = cores.iter().flatten().copied().collect();
    all.sort_unstable();
    let by_core: Vec<CpuSet> = cores.iter().map(|core| set(core)).collect();
    let by_cpu: Vec<CpuSet> = all.iter().map(|cpu| set(&[*cpu])).collect();
    let (Some(first_cpu), Some(last_cpu)) = (by_cpu.first().copied(), by_cpu.last().copied())
    else {
        return Placement::default();
    };
    let Some((first_core, other_cores)) = by_core.split_first() else {
        return Placement::default();
    };
    let anywhere = set(&all);
    let second_core = other_cores.first().unwrap_or(first_core);
    let spread = match other_cores {
        [] => vec![*first_core],
        others => others.to_vec(),
    };
    let one = |reading: CpuSet, working: CpuSet| Placement {
        reading: vec![reading],
        working: vec![working],
        ..Placement::default()
    };
    match strategy {
        PinThreads::Off | PinThreads::Anywhere => Placement::default(),
        PinThreads::R1L => one(first_cpu, anywhere),
        PinThreads::R1P => one(*first_core, anywhere),
        PinThreads::RP1L => one(first_cpu, first_cpu),
        PinThreads::RP1P => one(*first_core, *first_core),
        PinThreads::R1LP1L => one(first_cpu, last_cpu),
        PinThreads::R1PP1P => one(*first_core, *second_core),
        PinThreads::RPSL => Placement {
            reading: by_cpu.clone(),
            working: by_cpu,
            ..Placement::default()
        },
        PinThreads::RPSP => Placement {
            reading: by_core.clone(),
            working: by_core,
            ..Placement::default()
        },
        PinThreads::R1PPSP => Placement {
            reading: vec![*first_core],
            working: spread,
            ..Placement::default()
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(placement: &Placement) -> (Vec<Vec<usize>>, Vec<Vec<usize>>) {
        let list = |sets: &[CpuSet]| {
            sets.iter()
                .map(|set| (0..64).filter(|cpu| set.is_set(*cpu)).collect())
                .collect()
        };
        (list(&placement.reading), list(&placement.working))
    }

    #[test]
    fn each_strategy_puts_readers_and_others_where_it_says() {
        // Two cores of two hyper-threads each, numbered as Intel does, and a third.
        let cores = [vec![0, 3], vec![1, 4], vec![2, 5]];
        let all = vec![0, 1, 2, 3, 4, 5];
        let each: Vec<Vec<usize>> = all.iter().map(|cpu| vec![*cpu]).collect();
        for (strategy, reading, working) in [
            (PinThreads::R1L, vec![vec![0]], vec![all.clone()]),
            (PinThreads::R1P, vec![vec![0, 3]], vec![all.clone()]),
            (PinThreads::RP1L, vec![vec![0]], vec![vec![0]]),
            (PinThreads::RP1P, vec![vec![0, 3]], vec![vec![0, 3]]),
            (PinThreads::R1LP1L, vec![vec![0]], vec![vec![5]]),
            (PinThreads::R1PP1P, vec![vec![0, 3]], vec![vec![1, 4]]),
            (PinThreads::RPSL, each.clone(), each),
            (PinThreads::RPSP, cores.to_vec(), cores.to_vec()),
            (
                PinThreads::R1PPSP,
                vec![vec![0, 3]],
                vec![vec![1, 4], vec![2, 5]],
            ),
        ] {
            let placement = arrange(strategy, &cores);
            assert_eq!(shown(&placement), (reading, working), "{strategy}");
        }
    }

    #[test]
    fn one_cpu_is_enough_for_every_strategy() {
        for strategy in [PinThreads::R1LP1L, PinThreads::R1PP1P, PinThreads::R1PPSP] {
            let placement = arrange(strategy, &[vec![7]]);
            assert_eq!(
                shown(&placement),
                (vec![vec![7]], vec![vec![7]]),
                "{strategy}"
            );
        }
        assert_eq!(arrange(PinThreads::RPSL, &[]), Placement::default());
    }

    #[test]
    fn lists_of_cpus_are_read_as_the_kernel_writes_them() {
        assert_eq!(parse_list("0,4-6\n"), [0, 4, 5, 6]);
        assert_eq!(parse_list(""), [0; 0]);
        assert_eq!(parse_list("a,3"), [3]);
    }
}
