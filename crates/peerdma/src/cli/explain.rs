//! `peerdma explain`: what a completion status means, and why the work requests of a program
//! failed.

use std::ffi::OsString;
use std::os::fd::AsRawFd;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use iba::WcStatus;
use transport::env::Reason;

/// Names the file to which each failed work request adds a sentence.
const EXPLAIN: &str = "PEERDMA_EXPLAIN";

/// `peerdma explain`.
#[derive(clap::Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct Args {
    /// A completion status, as a number (12) or a name (RETRY_EXC_ERR)
    #[arg(value_name = "STATUS", required_unless_present = "program")]
    status: Option<String>,
    /// The vendor_err of the completion, as a number
    #[arg(value_name = "VENDOR_ERR")]
    vendor_err: Option<String>,
    /// Also write the life of each work request to this file, as `peerdma run --trace` does
    #[arg(long, value_name = "FILE", conflicts_with_all = ["status", "vendor_err"])]
    trace: Option<PathBuf>,
    /// A program and its arguments: run it as `peerdma run` does, and explain why its work requests
    /// failed
    #[arg(last = true, conflicts_with_all = ["status", "vendor_err"], value_name = "PROGRAM")]
    program: Vec<OsString>,
}

/// Explains, and returns the status of the program if there is one.
pub(crate) fn main(args: Args) -> ExitCode {
    let done = match &args.status {
        Some(status) => status_in_words(status, args.vendor_err.as_deref()).map(|words| {
            print!("{words}");
            ExitCode::SUCCESS
        }),
        None => run(&args.program, args.trace.as_deref()).map_err(|error| error.to_string()),
    };
    done.unwrap_or_else(|error| {
        eprintln!("peerdma explain: {error}");
        ExitCode::FAILURE
    })
}

fn number(text: &str) -> Option<u32> {
    match text.strip_prefix("0x") {
        Some(digits) => u32::from_str_radix(digits, 16).ok(),
        None => text.parse().ok(),
    }
}

/// The status that a program printed, by its number or by any spelling of its name.
fn find(text: &str) -> Option<WcStatus> {
    if let Some(number) = number(text) {
        return WcStatus::ALL.get(number as usize).copied();
    }
    let plain = |name: &str| name.to_ascii_uppercase().replace("IBV_WC_", "").replace("_ERR", "");
    WcStatus::ALL.into_iter().find(|status| plain(status.name()) == plain(text))
}

fn status_in_words(status: &str, vendor_err: Option<&str>) -> Result<String, String> {
    let found = find(status).ok_or_else(|| {
        let names: Vec<_> = WcStatus::ALL.iter().map(|status| status.name()).collect();
        let last = names.len() - 1;
        format!("{status:?} is no completion status; these are 0 to {last}: {}", names.join(", "))
    })?;
    let mut words = format!("IBV_WC_{} ({}): {}\n", found.name(), found as u8, meaning(found));
    if let Some(text) = vendor_err {
        let reason = number(text).and_then(Reason::from_vendor_err);
        words += &match reason {
            Some(reason) => format!("vendor_err {text} of peerdma: {reason}\n"),
            None => {
                format!(
                    "vendor_err {text} is none of peerdma's: is the completion from another device?\n"
                )
            }
        };
    }
    for advice in look_at(found) {
        words += &format!("  * {advice}\n");
    }
    if found != WcStatus::Success {
        words += "`peerdma explain -- PROGRAM ARGS` reports each failed work request with what the peer said.\n";
    }
    Ok(words)
}

/// What a status means (IBA 11.6.2).
fn meaning(status: WcStatus) -> &'static str {
    match status {
        WcStatus::Success => "the work request was carried out",
        WcStatus::LocLenErr => "a message was longer than the receive that it matched",
        WcStatus::LocQpOpErr => "the local QP could not carry the request out",
        WcStatus::LocProtErr => "the access to a local scatter/gather element is not allowed",
        WcStatus::WrFlushErr => "the QP was in error, and the request was not carried out",
        WcStatus::MwBindErr => "a memory window could not be bound",
        WcStatus::BadRespErr => "the peer sent an invalid response",
        WcStatus::LocAccessErr => {
            "an access to a local buffer was refused while a peer's request was carried out"
        }
        WcStatus::RemInvReqErr => "the peer found the request invalid",
        WcStatus::RemAccessErr => "the peer refused access to its memory",
        WcStatus::RemOpErr => "the peer could not carry out a valid request",
        WcStatus::RetryExcErr => "the peer did not answer, and retry_cnt is used up",
        WcStatus::RnrRetryExcErr => "the peer was not ready, and rnr_retry is used up",
        WcStatus::FatalErr => "the device failed",
        WcStatus::RespTimeoutErr => "the answer did not come in time",
        WcStatus::LocEecOpErr
        | WcStatus::LocRddViolErr
        | WcStatus::RemInvRdReqErr
        | WcStatus::RemAbortErr
        | WcStatus::InvEecnErr
        | WcStatus::InvEecStateErr => "of reliable datagrams, which no RoCE device has",
        WcStatus::TmErr => {
            "a receive to be removed from the tag list is not in it: its message has arrived"
        }
        WcStatus::TmRndvIncomplete => {
            "a rendezvous met a receive that has no room for it; the receive has its headers"
        }
        _ => "an error without a code of its own",
    }
}

/// Where to look, the likeliest cause first.
fn look_at(status: WcStatus) -> &'static [&'static str] {
    match status {
        WcStatus::LocLenErr => &[
            "post receives as long as the longest message; a datagram needs 40 bytes more, for its GRH",
        ],
        WcStatus::LocQpOpErr => &[
            "memory was unmapped although a region covers it",
            "a READ or an atomic on a QP whose max_rd_atomic is 0",
        ],
        WcStatus::LocProtErr => &[
            "the lkey is of another protection domain, or of a region that was deregistered or revoked",
            "an element reaches past the end of its region",
            "a buffer to be written lacks IBV_ACCESS_LOCAL_WRITE",
        ],
        WcStatus::WrFlushErr => {
            &["look at the first completion of this QP that was not flushed: that one failed"]
        }
        WcStatus::RemInvReqErr => &[
            "the message is longer than the peer's receive",
            "more READs and atomics at once than the peer's max_dest_rd_atomic",
            "an operation that the peer's qp_access_flags do not allow",
            "an atomic on an address that is not a multiple of 8",
        ],
        WcStatus::RemAccessErr => &[
            "the rkey is of another region, or the region was deregistered or revoked",
            "the range reaches past the end of the region",
            "the region lacks IBV_ACCESS_REMOTE_READ, _WRITE or _ATOMIC",
            "the region and the peer's QP are in different protection domains",
        ],
        WcStatus::RemOpErr => &["the peer's receive buffer cannot be written: see its completions"],
        WcStatus::RetryExcErr => &[
            "the peer ended, or its QP is not in RTR or RTS yet, or is in error",
            "the GID index: the address behind sgid_index cannot reach the peer's (`ibv_devinfo -v` lists them)",
            "UDP port 4791 is filtered between the hosts",
            "the QP number is wrong, or rq_psn is not the sender's sq_psn",
            "the path MTU is too large for the network",
            "the timeout is too short for the network: 4.096 us * 2^timeout, retry_cnt times",
        ],
        WcStatus::RnrRetryExcErr => &[
            "the peer posts its receives too late: post them before the other side sends",
            "rnr_retry = 7 retries without end; min_rnr_timer says how long each waits",
        ],
        WcStatus::FatalErr => {
            &["see the events of the device (IBV_EVENT_DEVICE_FATAL) and PEERDMA_LOG=error"]
        }
        _ => &[],
    }
}

/// Runs a program as `peerdma run` does, and then reports what failed.
fn run(program: &[OsString], trace: Option<&Path>) -> std::io::Result<ExitCode> {
    // The processes of the program open it through our descriptor, so that no file can be left
    // behind.
    let memory = rustix::fs::memfd_create("peerdma-explain", rustix::fs::MemfdFlags::CLOEXEC)?;
    let file = format!("/proc/{}/fd/{}", std::process::id(), memory.as_raw_fd());
    let mut child = Command::new(std::env::current_exe()?);
    child.arg("run");
    if let Some(trace) = trace {
        child.arg("--trace").arg(trace);
    }
    let status = child.arg("--").args(program).env(EXPLAIN, &file).status()?;
    let failed = std::fs::read_to_string(&file).unwrap_or_default();
    // The file also has lines about regions, which are no failures of requests.
    let is_of_region = |line: &&str| line.starts_with("region ");
    let lines: Vec<&str> = failed.lines().collect();
    match lines.len() - lines.iter().filter(|line| is_of_region(line)).count() {
        0 => eprintln!("peerdma explain: no work request failed"),
        1 => eprintln!("peerdma explain: a work request failed"),
        many => eprintln!("peerdma explain: {many} work requests failed"),
    }
    for line in &lines {
        eprintln!("{line}");
    }
    let statuses = WcStatus::ALL.into_iter().filter(|status| {
        let head = format!("{} (", status.name());
        lines.iter().any(|line| line.starts_with(&head))
    });
    for status in statuses {
        if let advice @ [_, ..] = look_at(status) {
            eprintln!("{} is usually one of these:", status.name());
            for line in advice {
                eprintln!("  * {line}");
            }
        }
    }
    match trace {
        Some(trace) => {
            eprintln!(
                "The trace of all work requests is {}: open it in ui.perfetto.dev",
                trace.display()
            );
        }
        None if !lines.is_empty() => {
            eprintln!("`--trace FILE` shows what led to it, request by request (docs/TRACE.md)");
        }
        None => {}
    }
    if !lines.is_empty() {
        eprintln!("`peerdma top` shows the queue pairs of programs that run (docs/OBSERVE.md)");
    }
    // As a shell does for a program that a signal ended.
    let code = status.code().and_then(|code| u8::try_from(code).ok());
    let by_signal = status.signal();
    Ok(code.or(by_signal.map(|signal| 128 + signal as u8)).unwrap_or(1).into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_is_found_by_number_and_by_name() {
        for text in ["12", "0xc", "RETRY_EXC_ERR", "RETRY_EXC", "IBV_WC_RETRY_EXC_ERR", "retry_exc"]
        {
            assert_eq!(find(text), Some(WcStatus::RetryExcErr), "{text}");
        }
        for text in ["24", "-1", "", "FINE"] {
            assert_eq!(find(text), None, "{text}");
        }
    }

    #[test]
    fn every_status_and_reason_has_words() {
        for status in WcStatus::ALL {
            let words = status_in_words(status.name(), Some("2")).expect("a status");
            assert!(words.starts_with(&format!("IBV_WC_{} ({})", status.name(), status as u8)));
            assert!(words.contains("no acknowledgement came"), "{words}");
        }
        assert!(
            status_in_words("12", Some("129")).expect("a status").contains("none of peerdma's")
        );
        assert!(status_in_words("99", None).is_err());
    }
}
