//! The same flows by iperf3, for users who trust it more: one server and one client per flow.

use super::{Ending, Error, Flow, FlowCount, LOOK, Result, Shared, Transport, enter};
use crate::net::sys;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::io::Read;
use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Sender, channel};
use std::thread::{Scope, ScopedJoinHandle};
use std::time::{Duration, Instant};

/// How long a client or server may take to exit after a signal; with [`WORD`] less than [`super::ANSWER`].
const ENDING: Duration = Duration::from_secs(8);

/// How long a server may take until it listens.
const LISTENING: Duration = Duration::from_secs(10);

/// How long a server waits for its client's last message, which drops may delay for seconds.
const WORD: Duration = Duration::from_secs(1);

/// Starts the servers; the clients wait for the start time.
pub(super) fn start<'scope>(
    scope: &'scope Scope<'scope, '_>,
    shared: &'scope Shared,
) -> Result<Vec<ScopedJoinHandle<'scope, Ending>>> {
    let version = Command::new("iperf3").arg("--version").output();
    version.map_err(|source| Error::NoIperf3 { source })?;
    let (ready, all_ready) = channel::<Result<()>>();
    let mut threads = Vec::new();
    for n in 0..shared.plan.flows.len() {
        let ready = ready.clone();
        threads.push(scope.spawn(move || server(shared, n, &ready)));
    }
    for _ in 0..shared.plan.flows.len() {
        all_ready.recv().unwrap_or(Err(Error::Silent))?;
    }
    for n in 0..shared.plan.flows.len() {
        threads.push(scope.spawn(move || client(shared, n)));
    }
    Ok(threads)
}

fn server(shared: &Shared, n: usize, ready: &Sender<Result<()>>) -> Ending {
    let flow = &shared.plan.flows[n];
    let spawn = || {
        enter(&flow.sink_netns)?;
        let address = flow.destination.ip().to_string();
        let port = flow.destination.port().to_string();
        let mut command = Command::new("iperf3");
        command.args(["-s", "-1", "-J", "-i", "0.5", "-B", &address, "-p", &port]);
        spawn(&mut command)
    };
    let mut child = match spawn() {
        Ok(mut child) => {
            // A client that connects earlier is refused, and ends.
            let until = Instant::now() + LISTENING;
            while !listens(flow.destination)
                && matches!(child.try_wait(), Ok(None))
                && Instant::now() < until
            {
                std::thread::sleep(Duration::from_millis(10));
            }
            let _ = ready.send(Ok(()));
            child
        }
        Err(error) => {
            let _ = ready.send(Err(error));
            return Ok(None);
        }
    };
    let Some(mut pipe) = child.stdout.take() else {
        return Ok(None);
    };
    let reader = std::thread::spawn(move || {
        let mut text = String::new();
        let _ = pipe.read_to_string(&mut text);
        text
    });
    wait_for_stop(shared, &mut child, flow, "server")?;
    // It exits when its client does, and also reports when interrupted.
    wait_for_end(&mut child, WORD);
    let ended = finish(&mut child);
    let text = reader.join().unwrap_or_default();
    // A server without a client has nothing to report.
    let text = if ended && !text.contains('{') {
        "{}"
    } else {
        &text
    };
    parse(text, flow).map(|count| Some((n, count)))
}

/// Whether TCP listens at a port of the calling thread's namespace, according to the kernel's table of its family.
fn listens(at: SocketAddr) -> bool {
    let family = if at.is_ipv4() { "tcp" } else { "tcp6" };
    let table = std::fs::read_to_string(format!("/proc/thread-self/net/{family}"));
    is_listed(&table.unwrap_or_default(), at.port())
}

/// A line has number, local address and port, remote ones, state (0A: listening), and more.
fn is_listed(table: &str, port: u16) -> bool {
    let local = format!(":{port:04X}");
    table.lines().any(|line| {
        let mut words = line.split_whitespace().skip(1);
        words.next().is_some_and(|word| word.ends_with(&local)) && words.nth(1) == Some("0A")
    })
}

fn client(shared: &Shared, n: usize) -> Ending {
    let flow = &shared.plan.flows[n];
    enter(&flow.netns)?;
    if !shared.wait_for_start(n) {
        return Ok(None);
    }
    let port = |address: SocketAddr| address.port().to_string();
    let mut command = Command::new("iperf3");
    command.args([
        "-c",
        &flow.destination.ip().to_string(),
        "-p",
        &port(flow.destination),
    ]);
    command.args([
        "-B",
        &flow.source.ip().to_string(),
        "--cport",
        &port(flow.source),
    ]);
    command.args(["-t", "86400", "-i", "0"]);
    match flow.transport {
        Transport::Udp => {
            command.args([
                "-u",
                "-b",
                "0",
                "-l",
                &shared.plan.payload_bytes.to_string(),
            ]);
        }
        Transport::Tcp => {
            command.args(["-C", &shared.plan.congestion_control]);
        }
    }
    let mut child = spawn(&mut command)?;
    wait_for_stop(shared, &mut child, flow, "client")?;
    finish(&mut child);
    Ok(None)
}

/// Starts iperf3 in the calling thread's namespace; it ends with that thread.
fn spawn(command: &mut Command) -> Result<Child> {
    command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    sys::die_with_parent(command)
        .spawn()
        .map_err(|source| Error::NoIperf3 { source })
}

/// Waits for the end of the run; it is an error if iperf3 ends before.
fn wait_for_stop(shared: &Shared, child: &mut Child, flow: &Flow, which: &str) -> Result<()> {
    while !shared.stopped() {
        if let Ok(Some(status)) = child.try_wait() {
            // Its other end may just have been stopped.
            if shared.stopped() {
                break;
            }
            // With -J the report is on standard output, the rest on standard error.
            let mut message = format!("{which} ended with {status}");
            for pipe in [
                child
                    .stderr
                    .take()
                    .map(|pipe| Box::new(pipe) as Box<dyn Read>),
                child
                    .stdout
                    .take()
                    .map(|pipe| Box::new(pipe) as Box<dyn Read>),
            ] {
                let mut text = String::new();
                let _ = pipe.map(|mut pipe| pipe.read_to_string(&mut text));
                message = format!("{message} {}", text.trim());
            }
            return Err(Error::Iperf3 {
                flow: flow.name.clone(),
                message,
            });
        }
        std::thread::sleep(LOOK);
    }
    Ok(())
}

/// Ends it with a signal; kills it if that has no effect, and returns false then.
fn finish(child: &mut Child) -> bool {
    if matches!(child.try_wait(), Ok(None)) {
        let _ = kill(Pid::from_raw(child.id() as i32), Signal::SIGINT);
    }
    wait_for_end(child, ENDING);
    let ended = !matches!(child.try_wait(), Ok(None));
    let _ = child.kill();
    let _ = child.wait();
    ended
}

fn wait_for_end(child: &mut Child, at_most: Duration) {
    let deadline = Instant::now() + at_most;
    while matches!(child.try_wait(), Ok(None)) && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Parses the server's report, which warnings may precede. A server whose client was interrupted has no total at the
/// end, but its intervals.
fn parse(text: &str, flow: &Flow) -> Result<FlowCount> {
    let failed = |message: String| Error::Iperf3 {
        flow: flow.name.clone(),
        message,
    };
    let json = text.find('{').map_or(text, |start| &text[start..]);
    let report: serde_json::Value =
        serde_json::from_str(json).map_err(|error| failed(format!("{error} in {text:?}")))?;
    let sums: Vec<_> = report["intervals"]
        .as_array()
        .into_iter()
        .flatten()
        .map(|interval| &interval["sum"])
        .collect();
    let total = |key: &str| sums.iter().filter_map(|sum| sum[key].as_u64()).sum::<u64>();
    let udp = flow.transport == Transport::Udp;
    Ok(FlowCount {
        name: flow.name.clone(),
        sent_packets: None,
        received_packets: udp.then(|| total("packets").saturating_sub(total("lost_packets"))),
        received_bytes: Some(total("bytes")),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{TcpListener, TcpStream};

    #[test]
    fn a_port_is_listened_at_once_somebody_does() {
        for at in ["127.0.0.1:0", "[::1]:0"] {
            let Ok(listener) = TcpListener::bind(at) else {
                continue; // no IPv6
            };
            let at = listener.local_addr().expect("an address");
            assert!(listens(at), "{at}");
            let stream = TcpStream::connect(at).expect("connect");
            drop(listener);
            // The connection's other end has the same port.
            assert!(!listens(at), "{at}");
            drop(stream);
        }
    }
}
