//! `ecn doctor`: what this machine supports, and what is missing.
//!
//! Each feature is tested by using it, not by version numbers: vendors backport features. The tests run in a network
//! namespace without a name and on a BPF file system that only one thread sees; both are removed with the thread,
//! whatever happens to the process.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use std::{fs, io};

use anyhow::Context as _;
use aya::maps::MapType;
use clap::Args;
use ecn_core::abi::name;
use ecn_report::statistics::percentile;
use ecn_report::terminal::{plain_table, table_text, wrapped_table};
use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};
use schemars::JsonSchema;
use serde::Serialize;

use crate::agent::health::Warning;
use crate::agent::root::FQ_MAJOR;
use crate::agent::state::{DIR, EndpointState, Lock, State, Waiting, try_writing};
use crate::config::Enforcement;
use crate::datapath::{self, AttachedBy, BTF, Datapath, Sizes};
use crate::net::htb::{EndpointHtb, FIRST_FLOW_MINOR};
use crate::net::sys::{BPFFS, is_bpffs};
use crate::net::{FqDrops, NetNs, Netlink, Qdisc, ROOT, VethEnd};

use super::counters::Counters;
use super::exit::{Failure, message, print, print_json};
use super::table::{warnings_text, wrapped};
use super::view::View;

/// `ecn doctor`.
#[derive(Args, Debug)]
pub(super) struct DoctorArgs {
    /// Print the results as JSON
    #[arg(long, short = 'j')]
    json: bool,
}

/// A feature that is needed or useful.
#[derive(Debug, Clone, PartialEq, Eq, JsonSchema, Serialize)]
pub(super) struct Check {
    need: &'static str,
    /// Null if it could not be tested.
    found: Option<bool>,
    /// Without it the datapath cannot run.
    required: bool,
    /// What was found.
    detail: String,
    /// What is lost without it, and what is used instead.
    #[serde(skip_serializing_if = "str::is_empty")]
    without: &'static str,
}

#[derive(Debug, JsonSchema, Serialize)]
pub(super) struct Program {
    program: String,
    verified_instructions: u32,
}

/// An endpoint of the running agent.
#[derive(Debug, JsonSchema, Serialize)]
pub(super) struct Enforced {
    device: String,
    netns: String,
    enforcement: Enforcement,
    why: String,
    /// Packets dropped by its root qdisc; null if unknown.
    qdisc_dropped_packets: Option<u32>,
    /// With fq: those of them whose departure time was beyond its horizon.
    fq_horizon_dropped_packets: Option<u64>,
    /// With fq: those of them that were above its limit per flow.
    fq_flow_limit_dropped_packets: Option<u64>,
}

impl Enforced {
    fn new(of: EndpointState) -> Self {
        let qdiscs = queues(&of).unwrap_or_default();
        let fq = qdiscs.iter().filter_map(|qdisc| qdisc.fq);
        // With mq the children have these counters, not the root.
        let fq = fq.reduce(|a, b| FqDrops {
            horizon: a.horizon + b.horizon,
            flow_limit: a.flow_limit + b.flow_limit,
        });
        Self {
            device: of.device,
            netns: of.netns,
            enforcement: of.enforcement,
            why: of.why,
            qdisc_dropped_packets: qdiscs.first().map(|root| root.drops),
            fq_horizon_dropped_packets: fq.map(|fq| fq.horizon),
            fq_flow_limit_dropped_packets: fq.map(|fq| fq.flow_limit),
        }
    }
}

/// The root qdisc of an endpoint, and those of its transmit queues.
fn queues(of: &EndpointState) -> crate::net::Result<Vec<Qdisc>> {
    let named = Some(of.netns.as_str()).filter(|netns| !netns.is_empty());
    let mut all = Netlink::open(&NetNs::open(named)?)?.qdiscs()?;
    all.retain(|qdisc| qdisc.ifindex == of.ifindex);
    let root = all.iter().find(|qdisc| qdisc.parent == ROOT).cloned();
    let Some(root) = root else {
        return Ok(Vec::new());
    };
    all.retain(|qdisc| qdisc.is_child_of(&root) && qdisc.kind == "fq");
    all.insert(0, root);
    Ok(all)
}

#[derive(Debug, Default, JsonSchema, Serialize)]
pub(super) struct Report {
    kernel: String,
    ready: bool,
    missing: Vec<&'static str>,
    /// What `enforcement = "auto"` would select; null if it could not be tested.
    enforcement: Option<&'static str>,
    /// Why it would be selected.
    enforcement_why: &'static str,
    /// Enforcement at the endpoints of the running agent.
    endpoints: Vec<Enforced>,
    /// Bridges and endpoints for which it waits.
    waiting: Vec<Waiting>,
    /// Process ID of a running agent or rig.
    agent_pid: Option<String>,
    /// No agent is running, but programs that an earlier one has kept are.
    kept: bool,
    /// Counters of its programs.
    counters: Counters,
    /// Its current warnings.
    warnings: Vec<Warning>,
    /// Lines of its log that were lost.
    log_lines_lost: u64,
    checks: Vec<Check>,
    programs: Vec<Program>,
}

impl Report {
    fn add(
        &mut self,
        need: &'static str,
        required: bool,
        found: impl Into<Option<bool>>,
        detail: impl Into<String>,
        without: &'static str,
    ) {
        let (found, detail) = (found.into(), detail.into());
        self.checks.push(Check {
            need,
            found,
            required,
            detail,
            without,
        });
    }

    /// Lists what is missing. What could not be tested is only listed if nothing is known to be missing.
    fn conclude(&mut self) {
        let required = |found| {
            let checks = self.checks.iter();
            let needs = checks.filter(move |check| check.required && check.found == found);
            needs.map(|check| check.need).collect::<Vec<_>>()
        };
        let (missing, unknown) = (required(Some(false)), required(None));
        self.ready = missing.is_empty() && unknown.is_empty();
        self.missing = if missing.is_empty() { unknown } else { missing };
    }

    /// Adds the result of a test, with the reason if it failed.
    fn tried<T>(
        &mut self,
        need: &'static str,
        required: bool,
        result: &anyhow::Result<T>,
        without: &'static str,
    ) {
        match result {
            Ok(_) => self.add(need, required, true, "works", without),
            Err(error) => self.add(need, required, false, message(error), without),
        }
    }
}

/// Runs the verb.
///
/// # Errors
///
/// Something that is required is missing.
pub(super) fn run(args: &DoctorArgs) -> anyhow::Result<()> {
    let report = examine();
    if args.json {
        print_json(&report)?;
    } else {
        print(&text(&report))?;
    }
    if report.ready {
        return Ok(());
    }
    let missing = report.missing.join(", ");
    Err(Failure::lacking(format!("the datapath cannot run here, missing: {missing}")).into())
}

fn examine() -> Report {
    let mut report = Report {
        kernel: read("/proc/sys/kernel/osrelease"),
        agent_pid: Lock::holder(),
        ..Report::default()
    };
    if report.agent_pid.is_some() {
        let state = State::read().unwrap_or_default();
        report.endpoints = state.endpoints.into_iter().map(Enforced::new).collect();
        report.waiting = state.waiting;
        report.log_lines_lost = state.log_lines_lost;
        if let Ok(view) = View::open(None) {
            report.counters = Counters::read(&view.maps).unwrap_or_default();
            report.warnings = view.warnings().to_vec();
        }
    } else {
        report.kept = State::read().is_some_and(|state| state.keep);
    }
    rights(&mut report, effective_rights());
    kernel_files(&mut report);
    std::thread::scope(|scope| {
        // A thread of its own: it leaves the namespaces of this process.
        let tried = scope.spawn(|| try_all(&mut report)).join();
        if let Err(panic) = tried {
            std::panic::resume_unwind(panic);
        }
    });
    machine(&mut report);
    report.conclude();
    report
}

fn read(path: impl AsRef<Path>) -> String {
    fs::read_to_string(path)
        .unwrap_or_default()
        .trim()
        .to_owned()
}

/// Bit n: capability number n of linux/capability.h.
fn effective_rights() -> u64 {
    let status = read("/proc/thread-self/status");
    let mask = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok())
        .unwrap_or(0)
}

fn rights(report: &mut Report, effective: u64) {
    const NET_ADMIN: u32 = 12;
    const SYS_ADMIN: u32 = 21;
    const PERFMON: u32 = 38;
    const BPF: u32 = 39;
    let has = |capability: u32| effective >> capability & 1 == 1;
    // CAP_SYS_ADMIN includes CAP_BPF and CAP_PERFMON, which are newer.
    let or_admin = |capability| has(capability) || has(SYS_ADMIN);
    let mut add = |need, required, found, without| {
        let detail = if found {
            "held"
        } else {
            "not held: run as root"
        };
        report.add(need, required, found, detail, without);
    };
    add("CAP_BPF", true, or_admin(BPF), "no programs can be loaded");
    add(
        "CAP_PERFMON",
        true,
        or_admin(PERFMON),
        "departures and drops cannot be traced",
    );
    add(
        "CAP_NET_ADMIN",
        true,
        has(NET_ADMIN),
        "programs cannot be attached, class rates cannot be changed",
    );
    add(
        "CAP_SYS_ADMIN",
        false,
        has(SYS_ADMIN),
        "no other network namespaces, no rig, no mounting of bpffs",
    );
}

fn kernel_files(report: &mut Report) {
    let btf = Path::new(BTF).exists();
    let detail = if btf {
        BTF.to_owned()
    } else {
        format!("no {BTF} (CONFIG_DEBUG_INFO_BTF)")
    };
    report.add(
        "BTF",
        true,
        btf,
        detail,
        "offsets of kernel structures are unknown",
    );
    let mounted = is_bpffs(Path::new(BPFFS));
    let detail = if mounted {
        format!("mounted on {BPFFS}")
    } else {
        format!("not mounted on {BPFFS}")
    };
    report.add(
        "bpffs",
        false,
        mounted,
        detail,
        "`ecn run` and `ecn rig` mount it",
    );
    let (found, detail) = match try_writing() {
        Ok(()) => (Some(true), "can be written".to_owned()),
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
            (None, "not tried: run as root".to_owned())
        }
        Err(error) => (Some(false), format!("cannot be written: {error}")),
    };
    report.add(
        DIR,
        true,
        found,
        detail,
        "`ecn run` does not start, and a running agent may show old ports and endpoints",
    );
    let jit = read("/proc/sys/net/core/bpf_jit_enable");
    let (found, detail) = match jit.as_str() {
        "" => (None, "unknown".to_owned()),
        "0" => (Some(false), "off (net.core.bpf_jit_enable=0)".to_owned()),
        _ => (Some(true), format!("on (net.core.bpf_jit_enable={jit})")),
    };
    report.add(
        "BPF JIT",
        false,
        found,
        detail,
        "programs are interpreted, several times slower",
    );
}

const NOT_TRIED: &str = "not tried: no namespace to try it in";
const NO_PROGRAM: &str = "not tried: no program to attach";

/// Runs the tests. Afterwards the calling thread is in other namespaces and must not be used for anything else.
fn try_all(report: &mut Report) {
    let ring = aya::sys::is_map_supported(MapType::RingBuf).map_err(anyhow::Error::from);
    match ring {
        Ok(found) => report.add(
            "ring buffer",
            true,
            found,
            if found { "works" } else { "not in this kernel" },
            "the agent is not notified of new rates",
        ),
        Err(error) => report.add("ring buffer", true, None, message(&error), ""),
    }
    let private = private_place();
    let loaded = match &private {
        Ok(_) => load(report),
        Err(error) => {
            // Without permission to create one, report at least whether there is an object.
            let open = Datapath::open(&scratch(), SIZES).map(drop);
            let embedded = !matches!(open, Err(datapath::Error::NoObject));
            object(report, embedded);
            let detail = format!("not tried: {}", message(error));
            report.add("kernel programs", true, None, detail, "");
            None
        }
    };
    match &private {
        Ok(netns) => devices(report, netns, loaded),
        Err(_) => {
            for (need, required, without) in [TCX, TAPS, FQ, HTB, VETH, BRIDGE] {
                report.add(need, required, None, NOT_TRIED, without);
            }
        }
    }
}

const TCX: (&str, bool, &str) = (
    "tcx",
    false,
    "clsact is used: `ecn clean` removes what a killed agent leaves there",
);
const TAPS: (&str, bool, &str) = (
    "limits at taps",
    false,
    "virtual machines at taps cannot be endpoints: run `ecn` in them",
);
const FQ: (&str, bool, &str) = (
    "fq",
    false,
    "no departure times (`enforcement = \"edt\"`), HTB classes instead",
);
const HTB: (&str, bool, &str) = (
    "HTB and bfifo",
    false,
    "no classes (`enforcement = \"htb\"`), no rig",
);
const XDP: (&str, bool, &str) = (
    "XDP in the driver",
    false,
    "echoes are processed at tc: `hook = \"xdp\"` is refused",
);
const VETH: (&str, bool, &str) = ("veth", false, "no rig, no marking at departure");
const BRIDGE: (&str, bool, &str) = ("bridge", true, "nothing can be marked");

/// A device for the tests.
const NEAR: &str = "ecn-near";

const SIZES: Sizes = Sizes {
    bridges: 1,
    flows: 64,
};

fn scratch() -> PathBuf {
    Path::new(BPFFS).join(format!("ecn-doctor-{}", std::process::id()))
}

/// Moves the calling thread to a network namespace without a name, and mounts a BPF file system that nobody else sees
/// over the machine's.
fn private_place() -> anyhow::Result<NetNs> {
    unshare(CloneFlags::CLONE_NEWNS | CloneFlags::CLONE_NEWNET).context("create namespaces")?;
    crate::net::sys::keep_mounts_private().context("keep mounts private")?;
    if Path::new(BPFFS).exists() {
        mount(
            Some("bpf"),
            BPFFS,
            Some("bpf"),
            MsFlags::empty(),
            None::<&str>,
        )
        .context("mount bpffs")?;
    }
    Ok(NetNs::from_path("/proc/thread-self/ns/net")?)
}

fn object(report: &mut Report, embedded: bool) {
    let detail = if embedded {
        "embedded"
    } else {
        "not in this build: run `cargo xtask build-ebpf`"
    };
    report.add(
        "program object",
        true,
        embedded,
        detail,
        "only the simulator works",
    );
}

/// Loads and verifies all programs.
fn load(report: &mut Report) -> Option<Datapath> {
    let mut opened = Datapath::open(&scratch(), SIZES);
    object(report, !matches!(opened, Err(datapath::Error::NoObject)));
    let verified = match &mut opened {
        // Also tests that other processes can open the pinned maps.
        Ok(datapath) => datapath
            .verify()
            .and_then(|found| datapath.maps().map(|_| found)),
        Err(_) => Ok(Vec::new()),
    };
    let failed = opened.as_ref().err().or(verified.as_ref().err());
    // Opening attaches these two; an earlier failure says nothing about them.
    let (tracing, detail) = match &opened {
        Ok(_) => (Some(true), "attached"),
        Err(datapath::Error::Program { program, .. })
            if matches!(program.as_str(), name::DEPART | name::DROP) =>
        {
            (Some(false), "cannot be attached, see below")
        }
        Err(_) => (None, "not tried: the programs cannot be loaded"),
    };
    report.add(
        "tp_btf hooks",
        true,
        tracing,
        detail,
        "departures and drops are not seen",
    );
    if let Ok(datapath) = &opened {
        let watches = datapath.watches_queues();
        let detail = if watches {
            "tracing programs may use spin locks"
        } else {
            "tracing programs may not use spin locks (on 6.1 they may)"
        };
        report.add(
            "ports' own queues",
            false,
            watches,
            detail,
            "`queue = \"device\"` and the rig are refused; `queue = \"virtual\"` works",
        );
        let sees = datapath.sees_drops();
        let detail = if sees {
            "kfree_skb reports the reason"
        } else {
            "kfree_skb does not report the reason (since 5.17 it does)"
        };
        report.add(
            "drops of queues",
            false,
            sees,
            detail,
            "drops are not counted; counters are corrected by the queue's length",
        );
    }
    match failed {
        None => {
            let detail = "loaded and verified, spin locks included";
            report.add(
                "kernel programs",
                true,
                true,
                detail,
                "no marking, no echo, no limits",
            );
        }
        Some(error) => {
            let detail = chain(error);
            report.add(
                "kernel programs",
                true,
                false,
                detail,
                "no marking, no echo, no limits",
            );
        }
    }
    if let Ok(verified) = verified {
        let program = |v: datapath::Verified| Program {
            program: v.program,
            verified_instructions: v.instructions,
        };
        report.programs = verified.into_iter().map(program).collect();
    }
    opened.ok()
}

/// An error with its causes.
fn chain(error: &datapath::Error) -> String {
    let mut text = error.to_string();
    let mut next = std::error::Error::source(error);
    while let Some(cause) = next {
        let cause_text = cause.to_string();
        if !text.contains(&cause_text) {
            text = format!("{text}: {cause_text}");
        }
        next = cause.source();
    }
    text
}

fn devices(report: &mut Report, netns: &NetNs, loaded: Option<Datapath>) {
    let has_tcx = loaded.as_ref().map(|datapath| tcx(netns, datapath));
    let (need, required, without) = TCX;
    match &has_tcx {
        Some(Ok(true)) => report.add(need, required, true, "works", without),
        Some(Ok(false)) => {
            let detail = "not in this kernel, clsact works";
            report.add(need, required, false, detail, without);
        }
        // Neither tcx nor clsact.
        Some(Err(error)) => report.add(need, true, false, message(error), without),
        None => report.add(need, required, None, NO_PROGRAM, without),
    }
    let (need, required, without) = TAPS;
    match &has_tcx {
        Some(Ok(true)) if loads_ifb(&report.kernel) => {
            let detail = "not tried: it would load module ifb, which adds ifb0 and ifb1";
            report.add(need, required, None, detail, without);
        }
        Some(Ok(true)) => {
            let ifb = Netlink::open(netns).and_then(|netlink| netlink.add_ifb("ecn-ifb"));
            report.tried(need, required, &ifb.map_err(Into::into), without);
        }
        Some(_) => report.add(need, required, false, "they need tcx", without),
        None => report.add(need, required, None, NO_PROGRAM, without),
    }
    let (need, required, without) = BRIDGE;
    let bridge = Netlink::open(netns).and_then(|netlink| netlink.add_bridge("ecn-bridge"));
    report.tried(need, required, &bridge.map_err(Into::into), without);
    let (need, required, without) = VETH;
    let veth = veth(netns);
    report.tried(need, required, &veth, without);
    // One test after the other: fq is only installed in place of the default root qdisc.
    let (fq, htb) = match veth {
        Ok(ifindex) => {
            let fq = fq(netns, ifindex);
            let htb = htb(netns, ifindex);
            let (need, required, without) = FQ;
            report.tried(need, required, &fq, without);
            let (need, required, without) = HTB;
            report.tried(need, required, &htb, without);
            let (need, required, without) = XDP;
            match &loaded {
                Some(datapath) => report.tried(need, required, &xdp(netns, datapath), without),
                None => report.add(need, required, None, NO_PROGRAM, without),
            }
            (fq.is_ok(), htb.is_ok())
        }
        Err(_) => {
            for (need, required, without) in [FQ, HTB, XDP] {
                report.add(need, required, None, "not tried: no device", without);
            }
            return;
        }
    };
    let (enforcement, why) = match (fq, htb) {
        (true, _) => ("edt", "fq can be installed"),
        (false, true) => ("htb", "there is no fq"),
        (false, false) => match datapath::cgroup(None) {
            Ok(_) => ("pacing", "there is neither fq nor HTB"),
            Err(_) => (
                "none",
                "there is neither fq nor HTB, and TCP sockets cannot be paced",
            ),
        },
    };
    report.enforcement = Some(enforcement);
    report.enforcement_why = why;
}

/// Whether adding an ifb would load its module, which adds devices to the machine: it is neither loaded nor built in, and
/// this kernel loads modules.
fn loads_ifb(kernel: &str) -> bool {
    let built_in = read(format!("/lib/modules/{kernel}/modules.builtin"));
    Path::new("/proc/modules").exists()
        && !Path::new("/sys/module/ifb").exists()
        && !built_in.contains("/ifb.ko")
}

/// Attaches a program to `lo`; false if only clsact works.
fn tcx(netns: &NetNs, datapath: &Datapath) -> anyhow::Result<bool> {
    let attached = datapath
        .endpoint(1)?
        .attach(netns, "lo", name::ENDPOINT_IN)?;
    Ok(attached.hook() == AttachedBy::Tcx)
}

/// Attaches the XDP program to a veth; other drivers may differ.
fn xdp(netns: &NetNs, datapath: &Datapath) -> anyhow::Result<()> {
    datapath.copy(netns.inum(), 1)?.attach_xdp(netns, NEAR)?;
    Ok(())
}

fn veth(netns: &NetNs) -> anyhow::Result<u32> {
    let [near, far] = [NEAR, "ecn-far"].map(|name| VethEnd {
        name,
        ..VethEnd::default()
    });
    let netlink = Netlink::open(netns)?;
    Ok(netlink.add_veth(&near, &far, netns, 1500)?.index)
}

/// Installs an fq and removes it.
fn fq(netns: &NetNs, ifindex: u32) -> anyhow::Result<()> {
    let netlink = Netlink::open(netns)?;
    netlink.fq(ifindex, FQ_MAJOR, ROOT, 100, 1000)?;
    Ok(netlink.delete_root_qdisc(ifindex)?)
}

fn htb(netns: &NetNs, ifindex: u32) -> anyhow::Result<()> {
    let htb = EndpointHtb {
        ifindex,
        link_bytes_per_s: 12_500_000,
        frame_bytes: 1514,
    };
    let netlink = Netlink::open(netns)?;
    htb.install(&netlink)?;
    Ok(htb.add_flow_class(&netlink, FIRST_FLOW_MINOR, 1_250_000)?)
}

/// Timers of which the lateness is measured.
const TIMERS: usize = 250;
/// Lateness that costs throughput, us: with the default threshold, a port of 100 Mbit/s has a queue for 1 ms.
const LATE_US: u64 = 1_000;

/// Whether timers are on time. An idle processor of a virtual machine may take milliseconds to wake, and a hypervisor
/// may take a busy one away.
fn timers(report: &mut Report, lateness_us: &mut [u64]) {
    lateness_us.sort_unstable();
    let Some(most) = percentile(lateness_us, 99) else {
        return;
    };
    let (all, ms) = (lateness_us.len(), most as f64 / 1e3);
    report.add(
        "timers on time",
        false,
        most < LATE_US,
        format!("99 % of {all} timers were at most {ms:.2} ms late"),
        "a port or source whose timer is late loses that time; keep idle CPUs awake (`tuned-adm profile \
         latency-performance`), and check the steal time of a virtual machine",
    );
}

/// How late each of [`TIMERS`] was, us.
fn lateness_us() -> Vec<u64> {
    let sleep = Duration::from_millis(1);
    let late = |_| {
        let start = Instant::now();
        std::thread::sleep(sleep);
        start.elapsed().saturating_sub(sleep).as_micros() as u64
    };
    (0..TIMERS).map(late).collect()
}

/// Tests what else matters on this machine.
fn machine(report: &mut Report) {
    timers(report, &mut lateness_us());
    let families = ["iptables", "ip6tables", "arptables"];
    let value = |family| read(format!("/proc/sys/net/bridge/bridge-nf-call-{family}"));
    netfilter(report, &families.map(|family| (family, value(family))));
    let iperf3 = std::env::var_os("PATH").and_then(|path| {
        std::env::split_paths(&path)
            .map(|folder| folder.join("iperf3"))
            .find(|file| file.is_file())
    });
    let found = iperf3.is_some();
    let detail = iperf3.map_or_else(
        || "not in PATH".to_owned(),
        |file| file.display().to_string(),
    );
    report.add(
        "iperf3",
        false,
        found,
        detail,
        "`--traffic iperf3` is not available; the rig has its own senders",
    );
}

/// With br_netfilter, bridged packets pass the IP layer's filters, and are detached from their sockets. The rig needs
/// the latter for full congestion.
fn netfilter(report: &mut Report, values: &[(&str, String)]) {
    const LOST: &str =
        "a rig's packets in flight count against their sockets' send buffers: less congestion";
    let values: Vec<_> = values
        .iter()
        .filter(|(_, value)| !value.is_empty())
        .collect();
    if values.is_empty() {
        report.add("br_netfilter", false, false, "not loaded", LOST);
        return;
    }
    let mut texts: Vec<_> = values
        .iter()
        .map(|(family, value)| format!("bridge-nf-call-{family}={value}"))
        .collect();
    if values.iter().any(|(_, value)| value != "0") {
        texts.push("bridged packets pass the IP filters, fragments are reassembled".to_owned());
    }
    report.add("br_netfilter", false, true, texts.join(", "), LOST);
}

/// Width of the text output.
const COLUMNS: u16 = 100;

fn text(report: &Report) -> String {
    let mut checks = wrapped_table(&["", "need", "found"], &[0, 1, 2], COLUMNS);
    for check in &report.checks {
        let sign = match (check.found, check.required) {
            (Some(true), _) => "ok",
            (Some(false), true) => "MISSING",
            (Some(false), false) => "no",
            (None, _) => "?",
        };
        let detail = match check.found {
            Some(true) => check.detail.clone(),
            _ if check.without.is_empty() => check.detail.clone(),
            _ => format!("{}; without it: {}", check.detail, check.without),
        };
        checks.add_row([sign, check.need, &detail]);
    }
    let mut text = format!("kernel {}\n\n{}", report.kernel, table_text(&checks));
    if !report.programs.is_empty() {
        let mut programs = plain_table(&["program", "instructions verified"], &[0]);
        for program in &report.programs {
            programs.add_row([
                program.program.clone(),
                program.verified_instructions.to_string(),
            ]);
        }
        text.push_str(&format!("\n{}", table_text(&programs)));
    }
    let agent = match &report.agent_pid {
        Some(pid) => format!("process {pid}"),
        None if report.kept => {
            "none; programs that an earlier one kept still mark: `ecn run --keep` takes over, \
             `ecn clean` removes them"
                .to_owned()
        }
        None => "none".to_owned(),
    };
    let verdict = if report.ready {
        "the datapath can run"
    } else {
        "the datapath cannot run"
    };
    let enforcement = match report.enforcement {
        Some(enforcement) => format!("{enforcement} ({})", report.enforcement_why),
        None => "unknown".to_owned(),
    };
    text.push_str(&format!("\nenforcement of rates: {enforcement}\n"));
    for of in &report.endpoints {
        let netns = match of.netns.as_str() {
            "" => String::new(),
            netns => format!(" in {netns}"),
        };
        let line = format!(
            "endpoint {}{netns}: {} ({}){}",
            of.device,
            of.enforcement,
            of.why,
            dropped(of)
        );
        text.push_str(&wrapped(&line, COLUMNS));
    }
    for waiting in &report.waiting {
        text.push_str(&wrapped(&format!("waiting for {waiting}"), COLUMNS));
    }
    let mut counters = wrapped_table(&["counted", "", ""], &[0, 2], COLUMNS);
    for (key, n, meaning) in report.counters.rows() {
        counters.add_row([key, &n.to_string(), meaning]);
    }
    if counters.row_count() > 0 {
        text.push_str(&format!("\n{}\n", table_text(&counters)));
    }
    if !report.warnings.is_empty() {
        text.push_str(&format!("\n{}\n", warnings_text(&report.warnings)));
    }
    if report.log_lines_lost > 0 {
        text.push_str(&format!(
            "lines of its log that were lost: {} (nobody reads it, the disk is full, or they came too fast)\n",
            report.log_lines_lost
        ));
    }
    text.push_str(&format!("running agent or rig: {agent}\n{verdict}\n"));
    text
}

/// What an endpoint's queue dropped; empty if nothing.
fn dropped(of: &Enforced) -> String {
    let Some(all @ 1..) = of.qdisc_dropped_packets else {
        return String::new();
    };
    let part = |n: Option<u64>, why| match n {
        Some(n @ 1..) => format!(", {n} {why}"),
        _ => String::new(),
    };
    format!(
        "; its queue dropped {all} packets{}{}",
        part(of.fq_horizon_dropped_packets, "beyond the horizon"),
        part(of.fq_flow_limit_dropped_packets, "above the limit per flow"),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An ordinary user needs these three for one machine's own devices, and no more.
    #[test]
    fn a_missing_right_is_named() {
        const NEEDED: u64 = 1 << 12 | 1 << 38 | 1 << 39;
        for (held, missing) in [
            (u64::MAX, &[][..]),
            (NEEDED, &[]),
            // Before Linux 5.8, one capability for all of BPF.
            (1 << 12 | 1 << 21, &[]),
            (NEEDED & !(1 << 39), &["CAP_BPF"]),
            (NEEDED & !(1 << 38), &["CAP_PERFMON"]),
            (NEEDED & !(1 << 12), &["CAP_NET_ADMIN"]),
            (0, &["CAP_BPF", "CAP_PERFMON", "CAP_NET_ADMIN"]),
        ] {
            let mut report = Report::default();
            rights(&mut report, held);
            report.conclude();
            assert_eq!(report.missing, missing, "{held:x}");
        }
        let mut report = Report::default();
        rights(&mut report, NEEDED);
        let printed = text(&report);
        assert!(printed.contains("CAP_SYS_ADMIN  not held"), "{printed}");
    }

    #[test]
    fn late_timers_are_reported() {
        let late = |count: usize| {
            let mut report = Report::default();
            let mut lateness_us = vec![60; 100 - count];
            lateness_us.extend(vec![3_000; count]);
            timers(&mut report, &mut lateness_us);
            report.checks.remove(0)
        };
        let check = late(2);
        assert_eq!(check.found, Some(false));
        assert_eq!(check.detail, "99 % of 100 timers were at most 3.00 ms late");
        let check = late(1);
        assert_eq!(check.found, Some(true));
        assert_eq!(check.detail, "99 % of 100 timers were at most 0.06 ms late");
    }

    #[test]
    fn all_three_switches_of_br_netfilter_are_shown() {
        let values = |of: [&str; 3]| {
            let names = ["iptables", "ip6tables", "arptables"];
            std::array::from_fn::<_, 3, _>(|i| (names[i], of[i].to_owned()))
        };
        let checked = |of| {
            let mut report = Report::default();
            netfilter(&mut report, &values(of));
            report.checks.remove(0)
        };
        let check = checked(["0", "1", "0"]);
        assert_eq!(check.found, Some(true));
        assert_eq!(
            check.detail,
            "bridge-nf-call-iptables=0, bridge-nf-call-ip6tables=1, bridge-nf-call-arptables=0, \
             bridged packets pass the IP filters, fragments are reassembled"
        );
        assert!(
            !checked(["0", "0", "0"])
                .detail
                .contains("pass the IP filters")
        );
        assert_eq!(checked(["", "", ""]).found, Some(false));
    }

    #[test]
    fn drops_of_a_queue_are_reported() {
        let mut of = Enforced {
            device: "eth0".to_owned(),
            netns: String::new(),
            enforcement: Enforcement::Edt,
            why: "as configured".to_owned(),
            qdisc_dropped_packets: Some(0),
            fq_horizon_dropped_packets: Some(0),
            fq_flow_limit_dropped_packets: Some(0),
        };
        assert_eq!(dropped(&of), "");
        of.qdisc_dropped_packets = Some(9);
        of.fq_horizon_dropped_packets = Some(7);
        assert_eq!(
            dropped(&of),
            "; its queue dropped 9 packets, 7 beyond the horizon"
        );
    }

    fn report(found: Option<bool>, required: bool) -> Report {
        let mut report = Report::default();
        report.add("thing", required, found, "detail", "nothing works");
        report
    }

    #[test]
    fn what_is_missing_is_named() {
        for (found, required, missing) in [
            (Some(true), true, &[][..]),
            (Some(false), false, &[]),
            (None, false, &[]),
            (Some(false), true, &["thing"]),
            (None, true, &["thing"]),
        ] {
            let mut report = report(found, required);
            report.conclude();
            assert_eq!(report.missing, missing, "{found:?} {required}");
            assert_eq!(report.ready, missing.is_empty());
        }
    }

    #[test]
    fn missing_features_name_what_is_lost() {
        assert!(!text(&report(Some(true), true)).contains("nothing works"));
        let missing = text(&report(Some(false), true));
        assert!(
            missing.contains("MISSING  thing  detail; without it: nothing works"),
            "{missing}"
        );
        assert!(!text(&report(Some(false), false)).contains("MISSING"));
    }
}
